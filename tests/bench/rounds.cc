// SPDX-License-Identifier: Apache-2.0
#include "bench/rounds.h"

#include <algorithm>
#include <random>

#include "base/check.h"

namespace terrace::bench {
namespace {

constexpr int kDraws = 4000;
constexpr std::uint32_t kSeed = 1979;

Interval reference_against_itself(const std::vector<Round>& rounds, RatioOf ratio_of) {
  std::mt19937 random(kSeed);  // its numbers are the same everywhere, unlike the distributions'
  std::vector<double> ratios;
  std::vector<double> stands_in(rounds.size());
  std::vector<double> reference(rounds.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      const Round& round = rounds[random() % rounds.size()];
      const bool swapped = random() % 2 == 1;
      stands_in[i] = swapped ? round.reference_again : round.reference;
      reference[i] = swapped ? round.reference : round.reference_again;
    }
    const double ratio = median(stands_in) / median(reference);
    ratios.push_back(ratio_of == RatioOf::kReferenceOverValue ? 1 / ratio : ratio);
  }
  std::ranges::sort(ratios);
  return {ratios[kDraws / 40], ratios[kDraws - 1 - kDraws / 40]};
}

}  // namespace

double median(std::vector<double> figures) {
  TERRACE_CHECK(!figures.empty());
  std::ranges::sort(figures);
  const std::size_t middle = figures.size() / 2;
  return figures.size() % 2 == 1 ? figures[middle] : (figures[middle - 1] + figures[middle]) / 2;
}

Compared compared(const std::vector<Round>& rounds, RatioOf ratio_of) {
  TERRACE_CHECK(!rounds.empty());
  std::vector<double> values;
  std::vector<double> references;
  for (const Round& round : rounds) {
    values.push_back(round.value);
    references.insert(references.end(), {round.reference, round.reference_again});
  }
  return {median(values), median(references), reference_against_itself(rounds, ratio_of)};
}

Result<std::vector<Round>> take_turns(int count, const Measure& value, const Measure& reference,
                                      const std::function<void(int done)>& said) {
  std::vector<Round> rounds;
  for (int i = 0; i < count; ++i) {
    Round round;
    for (const auto& [measure, figure] :
         {std::pair(&reference, &round.reference), {&value, &round.value}, {&reference, &round.reference_again}}) {
      const Result<double> measured = (*measure)();
      if (!measured) return std::unexpected(measured.error());
      *figure = *measured;
    }
    rounds.push_back(round);
    if (said) said(i + 1);
  }
  return rounds;
}

}  // namespace terrace::bench
