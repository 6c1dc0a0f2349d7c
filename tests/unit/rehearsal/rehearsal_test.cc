// SPDX-License-Identifier: Apache-2.0
// Workloads on the engine in virtual time: what happens is the same each time, keeps the engine's laws, is never faster
// than what is possible, and under the learned plan nearly as fast.
#include "rehearsal/rehearsal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <string>

#include "base/bytes.h"
#include "made_workloads.h"
#include "workload/bound.h"
#include "workload/generator.h"
#include "workload/perturb.h"
#include "workload/reader.h"

namespace terrace::rehearsal {
namespace {

using std::chrono::microseconds;
using workload::Place;

constexpr std::uint64_t kBytes = 16 * kMiB;
constexpr std::uint64_t kSpeed = 16'000'000'000;  // a tensor of kBytes takes about 1 ms

std::vector<StepReport> steps(Options options, std::uint64_t count) {
  options.check_laws = true;
  auto rehearsal = Rehearsal::create(std::move(options));
  if (!rehearsal) {
    ADD_FAILURE() << rehearsal.error().message;
    return {};
  }
  std::vector<StepReport> reports;
  for (std::uint64_t step = 0; step < count; ++step) {
    const auto report = (*rehearsal)->step();
    if (!report) {
      ADD_FAILURE() << report.error().message;
      return reports;
    }
    reports.push_back(*report);
    EXPECT_GE(report->makespan, report->compute);
  }
  return reports;
}

double share(const StepReport& report) {
  return static_cast<double>(report.compute.count()) / static_cast<double>(report.makespan.count());
}

// 48 layers whose weights fit and whose activations, at the peak, do not.
Options deep() {
  return {.workload = training(48, kBytes, 3 * kBytes, microseconds(4'000)),
          .node = node_of(160 * kBytes, workload::kUnlimited, 0, kSpeed)};
}

TEST(Rehearsal, TheSameRunGivesTheSameSteps) {
  Options options = deep();
  options.noise = 0.25;
  const auto once = steps(options, 3);
  const auto again = steps(options, 3);
  ASSERT_EQ(once.size(), again.size());
  for (std::size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(once[i].makespan, again[i].makespan);
    EXPECT_EQ(once[i].traffic, again[i].traffic);
  }
  options.seed = 2;
  EXPECT_NE(steps(options, 3).back().makespan, once.back().makespan);
}

TEST(Rehearsal, WhatFitsMovesOnceAndNeverAgain) {
  for (const PolicyKind policy :
       {PolicyKind::kLru, PolicyKind::kS3Fifo, PolicyKind::kDemandMin, PolicyKind::kNextUse}) {
    const auto reports = steps({.workload = loop(8, kBytes, microseconds(1'000), Place::kHbm, true),
                                .node = node_of(16 * kBytes, workload::kUnlimited, 0, kSpeed),
                                .policy = policy},
                               3);
    ASSERT_EQ(reports.size(), 3u) << name(policy);
    EXPECT_EQ(reports[0].traffic.hbm_bytes[0], 8 * kBytes) << name(policy);
    EXPECT_EQ(reports[2].traffic, Traffic{}) << name(policy);
    EXPECT_EQ(reports[2].makespan, reports[2].compute) << name(policy);
  }
}

TEST(Rehearsal, ThePlanHidesWhatTheLinksHaveTimeFor) {
  const auto planned = steps(deep(), 3);
  Options options = deep();
  options.policy = PolicyKind::kLru;
  const auto demand = steps(options, 3);
  ASSERT_EQ(planned.size(), 3u);
  ASSERT_EQ(demand.size(), 3u);
  EXPECT_LT(share(demand[2]), 0.97) << "there is something to hide";
  EXPECT_GE(share(planned[2]), 0.99);
  EXPECT_GT(planned[2].foreseen, 0.99);
}

TEST(Rehearsal, ThePlanIsInForceInTheSecondRepetition) {
  const auto reports = steps(deep(), 2);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].foreseen, 0);
  EXPECT_GT(reports[1].foreseen, 0.99);
  EXPECT_GT(share(reports[1]), share(reports[0]));
}

TEST(Rehearsal, NoiseOfAQuarterCostsAtMostTwoPoints) {
  const double calm = share(steps(deep(), 3).back());
  Options options = deep();
  options.noise = 0.25;
  double sum = 0;
  for (options.seed = 1; options.seed <= 4; ++options.seed) sum += share(steps(options, 3).back());
  EXPECT_GE(sum / 4, calm - 0.02);
}

// Each job reads more than its part of the device holds, as fast as the link brings it.
TEST(Rehearsal, EqualJobsShareALinkEquallyAndLoseNothingByIt) {
  Options options{.workload = loop(48, kBytes, microseconds(50), Place::kHbm, false),
                  .node = node_of(32 * kBytes, workload::kUnlimited, 0, kSpeed)};
  const auto alone = steps(options, 6);
  options.node.hbm_bytes *= 2;
  options.jobs = 2;
  const auto both = steps(options, 12);
  ASSERT_EQ(alone.size(), 6u);
  ASSERT_EQ(both.size(), 12u);
  std::array<Duration, 2> spent{};
  for (const StepReport& report : both)
    if (report.step > 3) spent.at(report.job) += report.makespan;
  EXPECT_NEAR(static_cast<double>(spent[0].count()) / static_cast<double>(spent[1].count()), 1, 0.05);
  Duration spent_alone{};
  for (const StepReport& report : alone)
    if (report.step > 3) spent_alone += report.makespan;
  EXPECT_LE(static_cast<double>(std::max(spent[0], spent[1]).count()),
            static_cast<double>(spent_alone.count()) * 2 / 0.95);
  EXPECT_GT(both.back().traffic.hbm_bytes[0], 0u) << "each job's bytes are its own";
  EXPECT_LT(both.back().traffic.hbm_bytes[0], 48 * kBytes);
}

TEST(Rehearsal, WhoKnowsTheFutureKnowsThatOfOneJob) {
  Options options = deep();
  options.jobs = 2;
  for (const PolicyKind policy : {PolicyKind::kDemandMin, PolicyKind::kOracle}) {
    options.policy = policy;
    const auto refused = Rehearsal::create(options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Rehearsal, WhoIsToldTheStepsNeedsNoRepetition) {
  Options options = deep();
  options.policy = PolicyKind::kOracle;
  const auto told = steps(options, 1);
  const auto learning = steps(deep(), 1);
  ASSERT_EQ(told.size(), 1u);
  ASSERT_EQ(learning.size(), 1u);
  EXPECT_GT(told[0].foreseen, 0.99);
  EXPECT_GT(share(told[0]), share(learning[0]));
}

TEST(Rehearsal, ATenthOfTheAccessesChangedLeavesMostOfWhatAnOracleGets) {
  Options options = deep();
  options.workload = workload::perturbed(options.workload, options.node, {.share = 0.1, .seed = 1, .repetitions = 4});
  const auto learned = steps(options, 4);
  options.policy = PolicyKind::kOracle;
  const auto told = steps(options, 4);
  ASSERT_EQ(learned.size(), 4u);
  ASSERT_EQ(told.size(), 4u);
  EXPECT_GE(share(learned[2]), 0.9 * share(told[2]));
  EXPECT_GE(share(learned[3]), 0.9 * share(told[3]));
}

TEST(Rehearsal, ThreeTiersArePlannedTogether) {
  Options options = deep();
  options.node = node_of(120 * kBytes, 128 * kBytes, workload::kUnlimited, kSpeed);
  const auto reports = steps(options, 3);
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_GE(share(reports[2]), 0.97);
}

// The optimizer of a large model, on the host: 256 tensors, of which 155 fit, 847 to 512.
TEST(Rehearsal, ACyclicSweepMovesWhatItMustAndLittleMore) {
  constexpr std::uint64_t kGB = 1'000'000'000;
  Options options{.workload = loop(847, kGB, microseconds(20'000), Place::kHost, true),
                  .node = node_of(kGB, 512 * kGB, 4000 * kGB, 55 * kGB)};
  options.node.block = {.in_bytes_per_s = 6'500'000'000, .out_bytes_per_s = 3'500'000'000};
  const auto bound = workload::lower_bound(options.workload, options.node);
  ASSERT_TRUE(bound);
  const auto planned = steps(options, 4);
  options.policy = PolicyKind::kLru;
  const auto demand = steps(options, 4);
  ASSERT_EQ(planned.size(), 4u);
  ASSERT_EQ(demand.size(), 4u);
  const auto fewest = static_cast<double>(bound->block.fewest_in_bytes);
  EXPECT_LE(static_cast<double>(planned[2].traffic.block_bytes[0]) / fewest, 1.05);
  EXPECT_GE(static_cast<double>(demand[2].traffic.block_bytes[0]) / fewest, 2.2);
}

// The optimizer of 70 billion parameters again, computed in HBM: over three tiers. What goes on from memory to the
// drives lies evenly over the step; and room in memory for what HBM writes down is not made of what was brought there
// for HBM to read, only because that is clean.
TEST(Rehearsal, ALoopOverAllThreeTiersIsAsFastAsItsLinksAndMovesNoMore) {
  constexpr std::uint64_t kGB = 1'000'000'000;
  Options options{.workload = loop(847, kGB, microseconds(150'000), Place::kHbm, true),
                  .node = node_of(80 * kGB, 512 * kGB, 2000 * kGB, 55 * kGB)};
  options.node.block = {.in_bytes_per_s = 6'500'000'000, .out_bytes_per_s = 3'500'000'000};
  for (const microseconds compute : {microseconds(150'000), microseconds(20'000)}) {
    options.workload = loop(847, kGB, compute, Place::kHbm, true);
    const auto bound = workload::lower_bound(options.workload, options.node);
    ASSERT_TRUE(bound);
    const auto planned = steps(options, 5);
    ASSERT_EQ(planned.size(), 5u);
    const auto fewest = static_cast<double>(bound->block.fewest_in_bytes);
    EXPECT_LE(static_cast<double>(planned[4].traffic.block_bytes[0]) / fewest, 1.06) << compute.count();
    EXPECT_LE(planned[4].makespan, bound->total * 108 / 100) << compute.count();
  }
}

// Of a loop that memory's link bounds, and that is only read, the next comes while the trainer computes.
TEST(Rehearsal, ALoopThatIsOnlyReadIsFetchedAhead) {
  const Options options{.workload = loop(128, kBytes, microseconds(120), Place::kHost, false),
                        .node = node_of(kBytes, 32 * kBytes, workload::kUnlimited, kSpeed)};
  const auto planned = steps(options, 6);
  ASSERT_EQ(planned.size(), 6u);
  const double link_s = static_cast<double>(planned[5].traffic.block_bytes[0]) / static_cast<double>(kSpeed);
  const double makespan_s = std::chrono::duration<double>(planned[5].makespan).count();
  const double compute_s = std::chrono::duration<double>(planned[5].compute).count();
  EXPECT_LE(makespan_s, link_s + compute_s / 3);
  EXPECT_LE(planned[5].traffic.block_bytes[0], 102 * kBytes) << "of the 96 that have no room";
}

// 70 billion parameters on one GPU of 80 GB: in the optimizer's part of the step the link has more to do than there is
// time for. What is used there soon is not moved so that what was just updated may stay, and what must be written down
// stays rather than what need not.
TEST(Rehearsal, WhereALinkBoundsTheOptimizerWhatItUsesSoonStays) {
  workload::Recipe recipe{.model = *std::ranges::find(workload::models(), "llama3-70b", &workload::Model::name),
                          .micro_batches = 4,
                          .recompute = true};
  recipe.offload.fill(true);
  const auto made = workload::generate(recipe);
  ASSERT_TRUE(made);
  const Options options{.workload = made->workload,
                        .node = node_of(80'000'000'000, 2'000'000'000'000, 0, 220'000'000'000)};
  const auto bound = workload::lower_bound(options.workload, options.node);
  ASSERT_TRUE(bound);
  EXPECT_EQ(bound->limit, workload::Limit::kHbmWindowIn);
  auto rehearsal = Rehearsal::create(options);
  ASSERT_TRUE(rehearsal);
  const std::uint64_t repetition = made->workload.steps.size();
  Duration makespan{};
  Traffic traffic;
  for (std::uint64_t step = 0; step < 3 * repetition; ++step) {
    const auto report = (*rehearsal)->step();
    ASSERT_TRUE(report);
    if (step < 2 * repetition) continue;
    makespan += report->makespan;
    traffic += report->traffic;
  }
  const auto over = [](auto measured, auto least) {
    return static_cast<double>(measured) / static_cast<double>(least);
  };
  EXPECT_LE(over(makespan.count(), bound->total.count()), 1.03);
  EXPECT_LE(over(traffic.hbm_bytes[0], bound->hbm.fewest_in_bytes), 1.18);
  EXPECT_LE(over(traffic.hbm_bytes[1], bound->hbm.fewest_out_bytes), 1.10);
}

TEST(Rehearsal, RunsAtBothPlacesMoveBetweenThem) {
  workload::Workload mixed = loop(8, kBytes, microseconds(2'000), Place::kHbm, true);
  const auto on_host = loop(8, kBytes, microseconds(2'000), Place::kHost, true);
  mixed.runs.insert(mixed.runs.end(), on_host.runs.begin(), on_host.runs.end());
  mixed.steps.front().end = mixed.runs.size();
  const auto reports =
      steps({.workload = mixed, .node = node_of(16 * kBytes, 64 * kBytes, workload::kUnlimited, kSpeed)}, 4);
  ASSERT_EQ(reports.size(), 4u);
  EXPECT_EQ(reports[3].traffic.hbm_bytes[0], 8 * kBytes) << "each comes up once a step";
  EXPECT_EQ(reports[3].traffic.block_bytes[0], 0u);
}

// What a run reads lies so that what it writes has no room side by side. It is one set, so that nothing of it is leased
// before all of it is, and what lies badly slides.
TEST(Rehearsal, ARunDoesNotStandInItsOwnWay) {
  workload::Workload own;
  own.name = "own";
  for (const std::uint64_t mib : {12U, 12U, 14U, 14U}) own.tensors.push_back({.bytes = mib * kMiB});
  const auto run = [&](std::vector<workload::TensorId> read, std::vector<workload::TensorId> write,
                       std::vector<workload::TensorId> free) {
    own.runs.emplace_back();
    own.runs.back().read = std::move(read);
    own.runs.back().write = std::move(write);
    own.runs.back().free = std::move(free);
  };
  run({}, {0}, {});
  run({}, {1}, {});
  run({0}, {}, {0});
  run({1}, {2, 3}, {1, 2, 3});
  own.steps.push_back({.end = own.runs.size()});
  const auto reports = steps(
      {.workload = own, .node = node_of(40 * kMiB, workload::kUnlimited, 0, kSpeed), .policy = PolicyKind::kLru}, 2);
  ASSERT_EQ(reports.size(), 2u);
  for (const StepReport& report : reports) EXPECT_LT(report.makespan, std::chrono::seconds(1)) << "no deadline passes";
}

TEST(Rehearsal, ATensorThatMemoryDoesNotHoldIsFilledInHbm) {
  workload::Workload wide;
  wide.name = "wide";
  for (const std::uint64_t mib : {12U, 2U}) wide.tensors.push_back({.bytes = mib * kMiB, .home = true});
  wide.runs.emplace_back();
  wide.runs.back().read = {0, 1};
  wide.steps.push_back({.end = 1});
  const auto reports = steps({.workload = wide, .node = node_of(16 * kMiB, 8 * kMiB, workload::kUnlimited, kSpeed)}, 2);
  EXPECT_EQ(reports.size(), 2u);
}

// Not part of the project: where TERRACE_WORKLOADS names their folder (docs/reference/workloads.md).
struct Bar {
  const char* workload;
  const char* node;
  double share;  // of ideal, in the third step
};

void PrintTo(const Bar& bar, std::ostream* out) { *out << bar.workload << " on " << bar.node; }

class G10 : public testing::TestWithParam<Bar> {};

TEST_P(G10, IsAsNearToIdealAsItsBarSays) {
  const char* folder = std::getenv("TERRACE_WORKLOADS");
  if (folder == nullptr) GTEST_SKIP() << "TERRACE_WORKLOADS does not name a folder with the G10 workloads";
  const auto node = workload::reference_node(GetParam().node);
  ASSERT_TRUE(node);
  const auto workload = workload::load(std::string(folder) + "/" + GetParam().workload + ".jsonl", &*node);
  ASSERT_TRUE(workload) << workload.error().message;
  const auto reports = steps({.workload = *workload, .node = *node}, 3);
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_GE(share(reports[2]), GetParam().share);
}

INSTANTIATE_TEST_SUITE_P(OnBothNodes, G10,
                         testing::Values(Bar{"g10-bert-base", "g10-2tier", 0.99}, Bar{"g10-vit", "g10-2tier", 0.88},
                                         Bar{"g10-bert-base", "g10", 0.99}, Bar{"g10-vit", "g10", 0.75}));

TEST(Rehearsal, ADeclaredStepIsPlannedFromTheFirstOneOn) {
  const auto first_step = [](bool declare) {
    auto rehearsal = Rehearsal::create({.workload = training(24, 8 * kMiB, 4 * kMiB, std::chrono::milliseconds(4)),
                                        .node = node_of(128 * kMiB, workload::kUnlimited, 0, 16'000'000'000),
                                        .declare = declare});
    EXPECT_TRUE(rehearsal);
    const auto report = (*rehearsal)->step();
    EXPECT_TRUE(report);
    return *report;
  };
  const StepReport unknown = first_step(false);
  const StepReport declared = first_step(true);
  EXPECT_EQ(unknown.foreseen, 0);
  EXPECT_GE(declared.foreseen, 0.95);
  EXPECT_LT((declared.makespan - declared.compute) * 2, unknown.makespan - unknown.compute);
}

}  // namespace
}  // namespace terrace::rehearsal
