// SPDX-License-Identifier: Apache-2.0
// Loops a little larger than memory: what a fallback must not collapse on, and what is possible.
#include <gtest/gtest.h>

#include "base/bytes.h"
#include "made_workloads.h"
#include "rehearsal/rehearsal.h"

namespace terrace::rehearsal {
namespace {

constexpr std::uint64_t kTensorBytes = 4 * kMiB;
constexpr std::uint32_t kFit = 256;  // of a loop's tensors, in HBM

// Share of the uses in the fifth round that found their tensor there.
double hits(PolicyKind policy, std::uint32_t tensors) {
  auto rehearsal = Rehearsal::create(
      {.workload = loop(tensors, kTensorBytes, std::chrono::microseconds(2'000), workload::Place::kHbm, false),
       .node = node_of(kFit * kTensorBytes, workload::kUnlimited, 0, 16'000'000'000),
       .policy = policy});
  if (!rehearsal) {
    ADD_FAILURE() << rehearsal.error().message;
    return 0;
  }
  std::uint64_t moved = 0;
  for (int step = 0; step < 5; ++step) {
    const auto report = (*rehearsal)->step();
    if (!report) {
      ADD_FAILURE() << report.error().message;
      return 0;
    }
    moved = report->traffic.hbm_bytes[0];
  }
  return 1 - static_cast<double>(moved / kTensorBytes) / tensors;
}

struct Loop {
  double size;  // over the capacity
  std::uint32_t tensors() const { return static_cast<std::uint32_t>(size * kFit); }
  double best() const { return 1 / size; }
};

class Loops : public testing::TestWithParam<Loop> {};

TEST_P(Loops, LruFindsNothingAndTheFallbackNearlyAllThatIsPossible) {
  const Loop loop = GetParam();
  EXPECT_EQ(hits(PolicyKind::kLru, loop.tensors()), 0);
  EXPECT_GE(hits(PolicyKind::kS3Fifo, loop.tensors()), 0.6 * loop.best());
  EXPECT_GE(hits(PolicyKind::kUnforeseen, loop.tensors()), 0.9 * loop.best());
  EXPECT_GE(hits(PolicyKind::kDemandMin, loop.tensors()), 0.97 * loop.best());
}

TEST_P(Loops, ThePlanMovesWhatItMust) {
  EXPECT_GE(hits(PolicyKind::kNextUse, GetParam().tensors()), GetParam().best() - 0.05);
}

INSTANTIATE_TEST_SUITE_P(OfSomeSizes, Loops,
                         testing::Values(Loop{1.02}, Loop{1.1}, Loop{1.25}, Loop{1.5}, Loop{1.75}, Loop{2.0}),
                         [](const auto& test) {
                           return "Of" + std::to_string(static_cast<int>(test.param.size * 100)) + "Percent";
                         });

}  // namespace
}  // namespace terrace::rehearsal
