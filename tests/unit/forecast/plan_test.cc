// SPDX-License-Identifier: Apache-2.0
// Shows what a plan looks at, what it refuses, and that its advice holds.
#include "forecast/plan.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "unit/rehearsal/made_workloads.h"

namespace terrace::forecast {
namespace {

using testing::AllOf;

using testing::HasSubstr;

constexpr std::uint64_t kGB = 1'000'000'000;

// GPT-2 on GPUs of 4 GB that share a node with `dram_gb`; `gpus` of them.
PlanOptions options_of(std::uint64_t gpus, std::uint64_t dram_gb, std::uint64_t node_gpus = 2) {
  PlanOptions options;
  options.recipe.model = *workload::model("gpt2-1.5b");
  options.recipe.gpus = gpus;
  options.recipe.recompute = true;
  options.recipe.offload = {true, true, true, true, false};
  options.node = workload::share({.name = "small",
                                  .hbm_bytes = 4 * kGB,
                                  .host_bytes = dram_gb * kGB,
                                  .block_bytes = 400 * kGB,
                                  .hbm = {20 * kGB, 20 * kGB, {}},
                                  .block = {4 * kGB, 2 * kGB, {}}},
                                 node_gpus);
  return options;
}

Plan plan_of(const PlanOptions& options) {
  auto plan = make_plan(options);
  EXPECT_TRUE(plan) << plan.error().message;
  return plan ? *std::move(plan) : Plan{};
}

std::string error_of(const PlanOptions& options) {
  const auto plan = make_plan(options);
  EXPECT_FALSE(plan);
  return plan ? "" : plan.error().message;
}

TEST(Plan, SharesANodeAmongTheRanksOnIt) {
  PlanOptions options = options_of(4, 16);
  options.source = Source::kBound;
  const Plan two = plan_of(options);
  EXPECT_EQ(two.nodes, 2u);
  EXPECT_EQ(two.ranks, 2u);
  EXPECT_EQ(two.node.host_bytes, 8 * kGB);
  options.recipe.gpus = 1;
  const Plan one = plan_of(options);
  EXPECT_EQ(one.nodes, 1u);
  EXPECT_EQ(one.ranks, 1u);
  EXPECT_EQ(one.node.host_bytes, 16 * kGB) << "the other GPU's share is nobody's";
  EXPECT_EQ(one.node.block.in_bytes_per_s, 4 * kGB);
  options.recipe.gpus = 3;
  EXPECT_THAT(error_of(options), AllOf(HasSubstr("3 GPUs do not fill nodes of 2"), HasSubstr("--gpus")));
}

TEST(Plan, LooksAtSizesAroundTheNodesOwn) {
  const Plan plan = plan_of(options_of(2, 10));
  ASSERT_GE(plan.curve.size(), 3u);
  EXPECT_TRUE(std::ranges::is_sorted(plan.curve, {}, &Point::dram_bytes));
  const auto own = std::ranges::find(plan.curve, 10 * kGB, &Point::dram_bytes);
  ASSERT_NE(own, plan.curve.end());
  EXPECT_EQ(own->outlook->step, plan.own.outlook->step);
  EXPECT_EQ(plan.own.outlook->source, Source::kRehearsal);
  EXPECT_EQ(plan.curve.back().outlook->traffic.block_bytes, (std::array<std::uint64_t, 2>{}));
  for (const Point& point : plan.curve) EXPECT_GE(point.outlook->step, point.bound->total);
}

TEST(Plan, LooksAtWhatIsAskedFor) {
  PlanOptions options = options_of(2, 10);
  options.source = Source::kBound;
  options.dram_bytes = {12 * kGB, 6 * kGB, 10 * kGB};
  const Plan plan = plan_of(options);
  ASSERT_EQ(plan.curve.size(), 3u);
  EXPECT_EQ(plan.curve[0].dram_bytes, 6 * kGB);
  EXPECT_EQ(plan.curve[2].dram_bytes, 12 * kGB);
  for (const Point& point : plan.curve) EXPECT_EQ(point.outlook->source, Source::kBound);
  for (std::size_t at = 1; at < 3; ++at)
    EXPECT_LE(plan.curve[at].outlook->traffic.block_bytes[1], plan.curve[at - 1].outlook->traffic.block_bytes[1]);
}

TEST(Plan, CountsTheWearOfAllRanks) {
  const Plan plan = plan_of(options_of(2, 6));
  ASSERT_TRUE(plan.own.wear);
  EXPECT_EQ(plan.drives.count, 1u) << "400 GB fit one";
  const Outlook& outlook = *plan.own.outlook;
  ASSERT_GT(outlook.traffic.block_bytes[1], 0u);
  EXPECT_DOUBLE_EQ(plan.own.wear->bytes_a_day,
                   wear(plan.drives, 2 * outlook.traffic.block_bytes[1], outlook.step).bytes_a_day);
}

TEST(Plan, SparesTheDrives) {
  PlanOptions options = options_of(2, 8);
  options.source = Source::kBound;
  options.recipe.batch = 64;
  options.recipe.offload = {false, false, true, false, false};
  options.drives = {.count = 1, .capacity_bytes = 960 * kGB, .writes_a_day = 50};
  const Plan plan = plan_of(options);
  ASSERT_FALSE(plan.own.wear->lasts(plan.drives));
  ASSERT_TRUE(plan.sparing_dram_bytes);
  for (const Point& point : plan.curve)
    EXPECT_EQ(point.wear->lasts(plan.drives), point.dram_bytes >= *plan.sparing_dram_bytes) << point.dram_bytes;
  ASSERT_TRUE(plan.sparing_micro_batches);
  EXPECT_GT(*plan.sparing_micro_batches, 1u);
  options.recipe.micro_batches = *plan.sparing_micro_batches;
  EXPECT_GE(plan_of(options).own.wear->years, 0.95 * plan.drives.rated_years);
  options.recipe.micro_batches = *plan.sparing_micro_batches / 2;
  EXPECT_LT(plan_of(options).own.wear->years, plan.drives.rated_years);
}

TEST(Plan, SaysWhatWouldRun) {
  PlanOptions options = options_of(2, 10);
  options.node.host_bytes = 100'000'000;
  options.dram_bytes = {20 * kGB};
  options.recipe.optimizer_place = workload::Place::kHost;
  EXPECT_THAT(error_of(options),
              AllOf(HasSubstr("does not run on small"), HasSubstr("with 20 GB of DRAM in each node it does")));
  options = options_of(2, 10);
  options.node.block_bytes = kGB;
  EXPECT_THAT(error_of(options), AllOf(HasSubstr("GB of NVMe in each node of small, which has 2"), HasSubstr("home")));
  options.recipe.micro_batches = 0;
  EXPECT_THAT(error_of(options), HasSubstr("micro-batches"));
}

TEST(Plan, NeedsNeitherDrivesNorDram) {
  PlanOptions options = options_of(1, 16, 1);
  options.node.block_bytes = 0;
  options.node.block = {};
  options.node.host_bytes = workload::kUnlimited;
  const Plan plan = plan_of(options);
  EXPECT_EQ(plan.drives.count, 0u);
  EXPECT_FALSE(plan.own.wear);
  ASSERT_FALSE(plan.curve.empty());
  EXPECT_FALSE(plan.curve.front().outlook) << "homes are in DRAM, which is too small";
  EXPECT_TRUE(plan.curve.back().outlook);
  options.node.host_bytes = 0;
  options.node.hbm_bytes = 80 * kGB;
  EXPECT_TRUE(plan_of(options).curve.empty());
}

TEST(Plan, WithoutDrivesLooksForWhatHoldsAllHomes) {
  PlanOptions options = options_of(2, 512);
  options.node.block_bytes = 0;
  options.node.block = {};
  const Plan plan = plan_of(options);
  const auto runs = std::ranges::find_if(plan.curve, [](const Point& point) { return point.outlook.has_value(); });
  ASSERT_NE(runs, plan.curve.end());
  EXPECT_LT(runs->dram_bytes, 512 * kGB) << "the node's own is not the first";
}

TEST(Plan, KnowsThePeak) {
  const auto workload = rehearsal::training(3, 10, 7, std::chrono::microseconds(1));
  EXPECT_EQ(peak_content_bytes(workload), 3u * 10 + 3 * 7);
}

}  // namespace
}  // namespace terrace::forecast
