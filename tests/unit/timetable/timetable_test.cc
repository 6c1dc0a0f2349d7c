// SPDX-License-Identifier: Apache-2.0
// Shows that plans of random small workloads keep every rule of the checker and never pass the lower bound, that a
// search never makes one worse, that HBM is used for the host's future, and what is said where there is no room.
#include "timetable/timetable.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "timetable/check.h"
#include "workload/bound.h"

namespace terrace::timetable {
namespace {

using std::chrono::microseconds;
using testing::HasSubstr;
using workload::Place;
using workload::TensorId;

constexpr std::uint64_t kBytesPerMicrosecond = 1'000'000;

workload::Node node_of(std::uint64_t hbm_bytes, std::uint64_t host_bytes,
                       std::uint64_t block_bytes = workload::kUnlimited) {
  const workload::LinkSpeed fast{.in_bytes_per_s = 4 * kBytesPerMicrosecond,
                                 .out_bytes_per_s = 4 * kBytesPerMicrosecond,
                                 .latency = microseconds(1)};
  const workload::LinkSpeed slow{
      .in_bytes_per_s = kBytesPerMicrosecond, .out_bytes_per_s = kBytesPerMicrosecond, .latency = microseconds(1)};
  return {.name = "small",
          .hbm_bytes = hbm_bytes,
          .host_bytes = host_bytes,
          .block_bytes = block_bytes,
          .hbm = fast,
          .block = slow};
}

// Reads and writes of a few tensors in HBM and host memory by turns; some are born, read once and freed.
workload::Workload random_workload(std::mt19937_64& random) {
  workload::Workload made{.name = "random", .source = "a test", .tensors = {}, .runs = {}, .steps = {}};
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  const std::uint64_t kept = 4 + below(12);
  for (TensorId id = 0; id < kept; ++id) made.tensors.push_back({.bytes = 10 + below(30), .home = true});
  std::vector<TensorId> alive;
  const std::uint64_t runs = 6 + below(20);
  for (std::uint64_t index = 0; index < runs; ++index) {
    workload::Run run{.name = "r" + std::to_string(index),
                      .compute = microseconds(1 + below(40)),
                      .place = below(3) == 0 ? Place::kHost : Place::kHbm,
                      .read = {},
                      .write = {},
                      .free = {}};
    const auto id = static_cast<TensorId>(below(kept));
    run.read.push_back(id);
    if (below(2) == 0) run.write.push_back(id);
    const auto other = static_cast<TensorId>(below(kept));
    if (other != id) (below(4) == 0 ? run.write : run.read).push_back(other);
    if (!alive.empty() && below(2) == 0) {
      run.read.push_back(alive.back());
      run.free.push_back(alive.back());
      alive.pop_back();
    }
    if (below(2) == 0 && index + 4 < runs) {
      alive.push_back(static_cast<TensorId>(made.tensors.size()));
      run.write.push_back(alive.back());
      made.tensors.push_back({.bytes = 10 + below(30), .home = false});
    }
    made.runs.push_back(std::move(run));
  }
  for (; !alive.empty(); alive.pop_back())
    made.runs.push_back(
        {.name = "last", .compute = microseconds(1), .read = {alive.back()}, .write = {}, .free = {alive.back()}});
  made.steps = {{.kind = workload::StepKind::kTrain, .end = made.runs.size()}};
  return made;
}

std::uint64_t most_leased(const workload::Workload& workload) {
  std::uint64_t most = 0;
  for (const workload::Run& run : workload.runs) most = std::max(most, workload::leased_bytes(workload, run));
  return most;
}

TEST(Timetable, PlansOfRandomWorkloadsKeepTheRulesAndNeverPassTheBound) {
  constexpr std::uint64_t kSeed = 39;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937_64 random(kSeed);
  int planned = 0;
  int moving = 0;
  for (int round = 0; round < 300; ++round) {
    const workload::Workload workload = random_workload(random);
    const std::uint64_t least = most_leased(workload);
    const workload::Node node = node_of(least + 20 + random() % 60, least + 40 + random() % 100);
    const Result<Schedule> schedule = plan(workload, node, {.evaluations = 1 + random() % 120, .seed = random()});
    if (!schedule) {
      EXPECT_EQ(schedule.error().code, ErrorCode::kFailedPrecondition) << schedule.error().message;
      continue;
    }
    ++planned;
    moving += schedule->moves.empty() ? 0 : 1;
    EXPECT_EQ(violation(workload, node, *schedule), std::nullopt) << "seed " << kSeed << ", round " << round;
    const auto bound = workload::lower_bound(workload, node);
    ASSERT_TRUE(bound);
    EXPECT_GE(schedule->makespan_ns, bound->total.count()) << "seed " << kSeed << ", round " << round;
  }
  EXPECT_GE(planned, 270);
  EXPECT_GE(moving, 200) << "too few of them have anything to plan";
}

// Weights that HBM reads, and states that host memory updates: 8 of each, of 20 and 60 bytes.
workload::Workload host_optimizer() {
  workload::Workload made{.name = "optimizer", .source = "a test", .tensors = {}, .runs = {}, .steps = {}};
  constexpr TensorId kLayers = 8;
  for (const std::uint64_t bytes : {20U, 60U})
    for (TensorId id = 0; id < kLayers; ++id) made.tensors.push_back({.bytes = bytes, .home = true});
  for (TensorId id = 0; id < kLayers; ++id)
    made.runs.push_back({.name = "use", .compute = microseconds(20), .read = {id}, .write = {}, .free = {}});
  for (TensorId id = 0; id < kLayers; ++id)
    made.runs.push_back({.name = "step",
                         .compute = microseconds(5),
                         .place = Place::kHost,
                         .read = {id, kLayers + id},
                         .write = {id, kLayers + id},
                         .free = {}});
  made.steps = {{.kind = workload::StepKind::kTrain, .end = made.runs.size()}};
  return made;
}

TEST(Timetable, ASearchMakesAPlanBetterAndTheSameSeedDoesTheSame) {
  const workload::Workload workload = host_optimizer();
  const workload::Node node = node_of(120, 260);
  const auto at_once = plan(workload, node, {});
  const auto searched = plan(workload, node, {.evaluations = 2000, .seed = 3});
  const auto again = plan(workload, node, {.evaluations = 2000, .seed = 3});
  ASSERT_TRUE(at_once && searched && again);
  EXPECT_LT(searched->makespan_ns, at_once->makespan_ns);
  EXPECT_EQ(searched->makespan_ns, again->makespan_ns);
  const auto bound = workload::lower_bound(workload, node);
  ASSERT_TRUE(bound);
  EXPECT_GE(static_cast<double>(bound->total.count()), 0.75 * static_cast<double>(searched->makespan_ns));
}

TEST(Timetable, HbmIsRoomForWhatTheHostUsesNext) {
  // Nothing but the host computes, and its two tensors of 60 fit in host memory one at a time; HBM has room for both.
  workload::Workload workload{.name = "lifts",
                              .source = "a test",
                              .tensors = {{.bytes = 60, .home = true}, {.bytes = 60, .home = true}},
                              .runs = {},
                              .steps = {}};
  for (const TensorId id : {0U, 1U})
    workload.runs.push_back(
        {.name = "step", .compute = microseconds(5), .place = Place::kHost, .read = {id}, .write = {id}, .free = {}});
  workload.steps = {{.kind = workload::StepKind::kTrain, .end = 2}};
  const auto with_hbm = plan(workload, node_of(130, 130), {.evaluations = 200});
  const auto lifted = plan(workload, node_of(130, 119), {.evaluations = 200});
  ASSERT_TRUE(with_hbm);
  ASSERT_TRUE(lifted);
  EXPECT_EQ(with_hbm->makespan_ns, 10'000) << "both fit in host memory";
  const auto touches_block = [](const Move& move) { return move.from == Tier::kBlock || move.to == Tier::kBlock; };
  EXPECT_TRUE(std::ranges::none_of(lifted->moves, touches_block));
  EXPECT_FALSE(lifted->moves.empty());
}

TEST(Timetable, AFileOfAScheduleHasAHeaderAndALineForEachEvent) {
  const auto schedule = plan(host_optimizer(), node_of(120, 260), {});
  ASSERT_TRUE(schedule);
  std::ostringstream out;
  write(out, *schedule, "optimizer", "small", 1000);
  const std::string text = out.str();
  EXPECT_EQ(text.find(R"({"schedule":"optimizer","node":"small","makespan_us":)"), 0u);
  EXPECT_THAT(text, HasSubstr(R"("lower_bound_us":1.000,)"));
  EXPECT_THAT(text, HasSubstr(R"({"run":0,"start_us":0.000})"));
  const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
  EXPECT_EQ(lines, 1 + schedule->runs_ns.size() + schedule->moves.size() + schedule->drops.size());
}

TEST(Timetable, NamesTheRunAndTheTierWithoutRoom) {
  const auto schedule = plan(host_optimizer(), node_of(19, 260), {});
  ASSERT_FALSE(schedule);
  EXPECT_EQ(schedule.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(schedule.error().message, HasSubstr("run 0, \"use\", finds no room in hbm on node small"));
}

TEST(Timetable, RefusesANodeWithoutHostMemory) {
  const auto schedule = plan(host_optimizer(), node_of(1000, 0), {});
  ASSERT_FALSE(schedule);
  EXPECT_EQ(schedule.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace::timetable
