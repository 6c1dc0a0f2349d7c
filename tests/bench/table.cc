// SPDX-License-Identifier: Apache-2.0
#include "bench/table.h"

#include <fmt/format.h>

#include <cmath>

namespace terrace::bench {
namespace {

std::string sign(Better better) { return better == Better::kHigher ? ">=" : "<="; }

std::string verdict(const Row& row) {
  const auto by = held_by(row);
  return by ? "holds by " + *by : "MISSED";
}

std::string shown(const Interval& interval) {
  return fmt::format("{} to {}", figure(interval.low), figure(interval.high));
}

std::string shown(const Count& count) {
  const std::string limit = count.limit ? fmt::format(" ({} {})", sign(count.better), figure(*count.limit)) : "";
  return fmt::format("{} {}{}", figure(count.value), count.name, limit);
}

std::string reference_of(const Row& row) {
  return row.reference.empty() ? "" : fmt::format("{} {}, {}", figure(row.reference_value), row.unit, row.reference);
}

}  // namespace

std::string figure(double value) {
  if (!std::isfinite(value)) return "none";
  const double size = std::fabs(value);
  if (size != 0 && size < 0.001) return fmt::format("{:.2g}", value);
  if (size < 10) return fmt::format("{:.3f}", value);
  if (size < 1000) return fmt::format("{:.1f}", value);
  std::string digits = fmt::format("{:.0f}", value);
  for (std::size_t at = digits.size(); at > 3 + (value < 0 ? 1 : 0); at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string to_text(const Row& row) {
  std::string text = fmt::format("{:<28} {:>12}  bar {} {:<10} {:<18} {}\n", row.bench, figure(ratio(row)),
                                 sign(row.better), figure(row.bar), verdict(row), row.path);
  if (!row.reference.empty())
    text += fmt::format("{:<28} {:>12} {} against {}\n", "", figure(row.value), row.unit, reference_of(row));
  else
    text += fmt::format("{:<28} {:>12} {}\n", "", figure(row.value), row.unit);
  if (row.interval)
    text += fmt::format("{:<28} {:>12} {}\n", "", "", "the reference against itself: " + shown(*row.interval));
  for (const Count& count : row.counts) text += fmt::format("{:<28} {:>12} {}\n", "", "", "counted: " + shown(count));
  return text;
}

std::string to_markdown(const std::vector<Row>& rows) {
  std::string text =
      "| row | bar | figure | value | reference | reference against itself | counted | holds by |\n"
      "|---|---|---|---|---|---|---|---|\n";
  for (const Row& row : rows) {
    std::string counts;
    for (const Count& count : row.counts) counts += (counts.empty() ? "" : "; ") + shown(count);
    text += fmt::format("| `{}` | {} {} | {} | {} {} | {} | {} | {} | {} |\n", row.bench, sign(row.better),
                        figure(row.bar), figure(ratio(row)), figure(row.value), row.unit, reference_of(row),
                        row.interval ? shown(*row.interval) : "", counts, held_by(row).value_or("**missed**"));
  }
  return text;
}

std::string summary(const std::vector<Row>& rows) {
  std::size_t by_ratio = 0;
  std::size_t by_interval = 0;
  std::string missed;
  for (const Row& row : rows) {
    const auto by = held_by(row);
    if (!by)
      missed += (missed.empty() ? "" : ", ") + row.bench;
    else
      ++(*by == "ratio" ? by_ratio : by_interval);
  }
  return fmt::format("{} rows: {} bars hold, {} of them by the interval; missed: {}", rows.size(),
                     by_ratio + by_interval, by_interval, missed.empty() ? "none" : missed);
}

}  // namespace terrace::bench
