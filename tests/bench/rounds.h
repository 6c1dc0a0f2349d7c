// SPDX-License-Identifier: Apache-2.0
// Rounds in which what is measured takes turns with its reference, so that what else the machine does meets both.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/row.h"
#include "terrace/error.h"

namespace terrace::bench {

// One round: the reference, what is measured, and the reference again.
struct Round {
  double reference = 0;
  double value = 0;
  double reference_again = 0;
};

// Medians over the rounds, and the reference against itself.
struct Compared {
  double value = 0;
  double reference = 0;
  Interval interval;
};

// The middle one; of an even number, the mean of the middle two. At least one.
double median(std::vector<double> figures);

// The interval holds 95 of a hundred ratios that the same number of rounds gives when the reference stands in for what
// is measured: medians of rounds drawn with replacement (bootstrap; Efron 1979), the two measurements of a round in
// either order, from a fixed seed. `ratio_of` says which of the two the ratio divides by; it bears on the interval
// alone.
Compared compared(const std::vector<Round>& rounds, RatioOf ratio_of = RatioOf::kValueOverReference);

// One measurement; what it gives is one figure, higher or lower being better as its row says.
using Measure = std::function<Result<double>()>;

// Runs `count` rounds. `said` hears after each one how many are done. The first error ends it.
Result<std::vector<Round>> take_turns(int count, const Measure& value, const Measure& reference,
                                      const std::function<void(int done)>& said = {});

}  // namespace terrace::bench
