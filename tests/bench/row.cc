// SPDX-License-Identifier: Apache-2.0
#include "bench/row.h"

#include <algorithm>

#include "base/check.h"

namespace terrace::bench {
namespace {

const char* word(Better better) { return better == Better::kHigher ? "higher" : "lower"; }

bool counts_hold(const std::vector<Count>& counts) {
  const auto limited = [](const Count& count) { return count.limit.has_value(); };
  const auto holds = [](const Count& count) { return !count.limit || within(count.value, *count.limit, count.better); };
  return std::ranges::any_of(counts, limited) && std::ranges::all_of(counts, holds);
}

nlohmann::ordered_json to_json(const Count& count) {
  nlohmann::ordered_json json{{"name", count.name}, {"value", count.value}};
  json["limit"] = count.limit ? nlohmann::ordered_json(*count.limit) : nlohmann::ordered_json(nullptr);
  json["better"] = word(count.better);
  return json;
}

}  // namespace

bool within(double value, double limit, Better better) {
  return better == Better::kHigher ? value >= limit : value <= limit;
}

double ratio(const Row& row) {
  switch (row.ratio_of) {
    case RatioOf::kValueOverReference:
      return row.value / row.reference_value;
    case RatioOf::kReferenceOverValue:
      return row.reference_value / row.value;
    case RatioOf::kValue:
      return row.value;
  }
  check_failed("a ratio of what there is", __FILE__, __LINE__);
}

std::optional<std::string> held_by(const Row& row) {
  const double measured = ratio(row);
  if (within(measured, row.bar, row.better)) return "ratio";
  const bool as_reference = row.interval && measured >= row.interval->low && measured <= row.interval->high;
  if (as_reference && counts_hold(row.counts)) return "interval";
  return std::nullopt;
}

nlohmann::ordered_json to_json(const Row& row) {
  const bool referred = row.ratio_of != RatioOf::kValue;
  TERRACE_CHECK(referred == !row.reference.empty());
  nlohmann::ordered_json json{{"bench", row.bench}, {"value", row.value}, {"unit", row.unit}};
  json["reference"] = referred ? nlohmann::ordered_json(row.reference) : nlohmann::ordered_json(nullptr);
  json["reference_value"] = referred ? nlohmann::ordered_json(row.reference_value) : nlohmann::ordered_json(nullptr);
  json["ratio"] = ratio(row);
  json["bar"] = row.bar;
  json["better"] = word(row.better);
  json["interval"] = nullptr;
  if (row.interval) json["interval"] = {row.interval->low, row.interval->high};
  json["counts"] = nlohmann::ordered_json::array();
  for (const Count& count : row.counts) json["counts"].push_back(to_json(count));
  const auto by = held_by(row);
  json["by"] = by ? nlohmann::ordered_json(*by) : nlohmann::ordered_json(nullptr);
  return json;
}

}  // namespace terrace::bench
