// SPDX-License-Identifier: Apache-2.0
// One row of the benchmark: what was measured, against what, and whether its bar holds.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace terrace::bench {

enum class Better { kHigher, kLower };

// What the bar bounds.
enum class RatioOf {
  kValueOverReference,
  kReferenceOverValue,
  kValue,  // the value itself, of rows without a reference
};

// The reference against itself, as the ratio of the row is made: [low, high].
struct Interval {
  double low = 1;
  double high = 1;
};

// A figure that does not depend on the clock, and what it must not pass.
struct Count {
  std::string name;  // with its unit: "system calls a lease"
  double value = 0;
  std::optional<double> limit{};  // none: shown only
  Better better = Better::kLower;
};

// The clock's figures are medians of several rounds that took turns with the reference (see rounds.h).
struct Row {
  std::string bench;  // "suite.row": unique
  std::string path;   // what was measured, for people
  double value = 0;
  std::string unit;
  std::string reference{};  // empty: none
  double reference_value = 0;
  RatioOf ratio_of = RatioOf::kValueOverReference;
  double bar = 0;
  Better better = Better::kHigher;
  std::optional<Interval> interval{};
  std::vector<Count> counts{};
};

// Whether a figure is on the good side of a limit, or on it.
bool within(double value, double limit, Better better);

// What the bar bounds.
double ratio(const Row& row);

// By what the bar holds. "ratio": the ratio reaches it. "interval": the ratio is one that the reference had against
// itself, and the counted figures are all within their limits, of which there is one at least. Nothing: it is missed.
std::optional<std::string> held_by(const Row& row);

// The object that --json prints: bench, value, unit, reference, reference_value, ratio, bar, better, interval, counts,
// by; terrace-bench adds quick. What a row does not have is null.
nlohmann::ordered_json to_json(const Row& row);

}  // namespace terrace::bench
