// SPDX-License-Identifier: Apache-2.0
#include "workload/record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "workload/reader.h"

namespace terrace::workload {
namespace {

using nlohmann::json;

// What "us" is counted in.
constexpr double kNanosecondsPerMicrosecond = 1000;

std::string_view type_name(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "a list";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "true or false";
    default:
      return "a number";
  }
}

}  // namespace

struct Record::Object {
  json value;

  // The field, or what is wrong with it.
  Result<const json*> find(std::string_view field, std::string_view right) const {
    const auto found = value.find(field);
    if (found == value.end()) return refuse(fmt::format("\"{}\" is missing; it must be {}", field, right));
    return &*found;
  }
  template <typename Matches>
  Result<const json*> find(std::string_view field, std::string_view right, Matches matches) const {
    const Result<const json*> found = find(field, right);
    if (found && !((*found)->*matches)()) {
      return refuse(fmt::format("\"{}\" is {}; it must be {}", field, type_name(**found), right));
    }
    return found;
  }
};

Record::Record(std::unique_ptr<Object> object) : object_(std::move(object)) {}
Record::Record(Record&&) noexcept = default;
Record& Record::operator=(Record&&) noexcept = default;
Record::~Record() = default;

Result<Record> Record::parse(std::string_view line) {
  std::set<std::string> names;
  std::string twice;
  const auto see = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1) {
      auto& name = parsed.get_ref<const std::string&>();
      if (!names.insert(name).second) twice = name;
    }
    return true;
  };
  auto object = std::make_unique<Object>(Object{json::parse(line, see, /*allow_exceptions=*/false)});
  if (object->value.is_discarded()) return refuse("is not one whole JSON object; write one record a line");
  if (!object->value.is_object()) {
    return refuse(fmt::format("is {}; each line is one record, a JSON object", type_name(object->value)));
  }
  if (!twice.empty()) return refuse(fmt::format("\"{}\" stands there twice; write it once", twice));
  return Record(std::move(object));
}

bool Record::has(std::string_view field) const { return object_->value.contains(field); }

Result<void> Record::only(std::initializer_list<std::string_view> known) const {
  for (const auto& [field, value] : object_->value.items()) {
    if (std::ranges::find(known, field) != known.end()) continue;
    return refuse(fmt::format("\"{}\" is no field of such a record; it has \"{}\"", field, fmt::join(known, "\", \"")));
  }
  return {};
}

Result<std::string> Record::text(std::string_view field) const {
  const auto value = object_->find(field, "a string", &json::is_string);
  if (!value) return std::unexpected(value.error());
  return (*value)->get<std::string>();
}

Result<bool> Record::flag(std::string_view field) const {
  const auto value = object_->find(field, "true or false", &json::is_boolean);
  if (!value) return std::unexpected(value.error());
  return (*value)->get<bool>();
}

Result<std::uint64_t> Record::integer(std::string_view field, std::uint64_t min, std::uint64_t max) const {
  const std::string right = fmt::format("a whole number from {} to {}", min, max);
  const auto value = object_->find(field, right);
  if (!value) return std::unexpected(value.error());
  if (!(*value)->is_number_unsigned()) {
    return refuse(fmt::format("\"{}\" is {}; it must be {}", field, (*value)->dump().substr(0, 40), right));
  }
  const auto number = (*value)->get<std::uint64_t>();
  if (number < min || number > max) return refuse(fmt::format("\"{}\" is {}; it must be {}", field, number, right));
  return number;
}

Result<Duration> Record::microseconds(std::string_view field) const {
  const auto value = object_->find(field, "a number of microseconds", &json::is_number);
  if (!value) return std::unexpected(value.error());
  const auto microseconds = (*value)->get<double>();
  constexpr auto kMax = static_cast<double>(kWorkloadComputeMax.count()) / kNanosecondsPerMicrosecond;
  if (!(microseconds >= 0 && microseconds <= kMax)) {
    return refuse(fmt::format("\"{}\" is {}; it must be from 0 to {:.0f}", field, microseconds, kMax));
  }
  return Duration(std::llround(microseconds * kNanosecondsPerMicrosecond));
}

Result<std::size_t> Record::one_of(std::string_view field, std::span<const std::string_view> allowed) const {
  const Result<std::string> value = text(field);
  if (!value) return std::unexpected(value.error());
  const auto found = std::ranges::find(allowed, *value);
  if (found != allowed.end()) return static_cast<std::size_t>(found - allowed.begin());
  return refuse(fmt::format("\"{}\" is \"{}\"; it must be one of \"{}\"", field, *value, fmt::join(allowed, "\", \"")));
}

Result<std::vector<TensorId>> Record::ids(std::string_view field, std::size_t declared) const {
  const auto value = object_->find(field, "a list of ids", &json::is_array);
  if (!value) return std::unexpected(value.error());
  std::vector<TensorId> ids;
  ids.reserve((*value)->size());
  for (const json& element : **value) {
    if (!element.is_number_unsigned()) {
      return refuse(fmt::format("\"{}\" holds {}; it must hold ids alone", field, element.dump().substr(0, 40)));
    }
    const auto id = element.get<std::uint64_t>();
    if (id >= declared) {
      return refuse(fmt::format("\"{}\" has tensor {}, which no line before this one declares", field, id));
    }
    ids.push_back(static_cast<TensorId>(id));
  }
  std::vector<TensorId> sorted = ids;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) return refuse(fmt::format("\"{}\" has tensor {} twice; write it once", field, *twice));
  return ids;
}

}  // namespace terrace::workload
