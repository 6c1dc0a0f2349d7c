// SPDX-License-Identifier: Apache-2.0
// Shows that the bound is what its definition says on cases small enough to work out by hand, that it never passes the
// best of all schedules, which is searched for exhaustively, and that it says of the G10 files what is known of them
// (where TERRACE_WORKLOADS names the folder that they lie in).
#include "workload/bound.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <sstream>

#include "unit/workload/best_schedule.h"
#include "workload/reader.h"
#include "workload/writer.h"

namespace terrace::workload {
namespace {

using std::chrono::microseconds;
using testing::HasSubstr;

constexpr std::uint64_t kBytesPerMicrosecond = 1'000'000;

Run run(std::vector<TensorId> read, std::vector<TensorId> write, std::vector<TensorId> free, std::int64_t us = 1,
        Place place = Place::kHbm) {
  return {.name = "r",
          .compute = microseconds(us),
          .place = place,
          .read = std::move(read),
          .write = std::move(write),
          .free = std::move(free)};
}

Workload of(const std::vector<std::uint64_t>& bytes, std::vector<Run> runs) {
  Workload workload{.name = "small", .source = "a test", .tensors = {}, .runs = std::move(runs), .steps = {}};
  for (const std::uint64_t size : bytes) workload.tensors.push_back({.bytes = size, .home = true});
  workload.steps.push_back({.kind = StepKind::kTrain, .end = workload.runs.size()});
  return workload;
}

// One byte a microsecond each way on both links.
Node node_of(std::uint64_t hbm_bytes, std::uint64_t host_bytes = kUnlimited, std::uint64_t block_bytes = 0) {
  const LinkSpeed link{.in_bytes_per_s = kBytesPerMicrosecond, .out_bytes_per_s = kBytesPerMicrosecond, .latency = {}};
  return {.name = "small",
          .hbm_bytes = hbm_bytes,
          .host_bytes = host_bytes,
          .block_bytes = block_bytes,
          .hbm = link,
          .block = link};
}

Bound bound_of(const Workload& workload, const Node& node) {
  const Result<Bound> bound = lower_bound(workload, node);
  EXPECT_TRUE(bound) << bound.error().message;
  return bound.value_or(Bound{});
}

TEST(Bound, IsTheComputeTimeWhereEverythingFits) {
  const Bound bound = bound_of(of({100, 100}, {run({0}, {1}, {}), run({0, 1}, {}, {1}, 5)}), node_of(200));
  EXPECT_EQ(bound.total, microseconds(6));
  EXPECT_EQ(bound.limit, Limit::kCompute);
  EXPECT_EQ(bound.hbm.fewest_in_bytes, 0u);
  EXPECT_EQ(bound.hbm.fewest_out_bytes, 0u);
  EXPECT_EQ(bound.hbm.window_out.step, Duration{});
  EXPECT_EQ(bound.hbm.window_in.step, Duration{});
}

TEST(Bound, ASweepKeepsWhatFitsBesideTheOneInUse) {
  // Ten tensors of 100 bytes in turn, room for four: three of the ten stay, as Belady has it.
  Workload workload = of(std::vector<std::uint64_t>(10, 100), {});
  for (TensorId id = 0; id < 10; ++id) workload.runs.push_back(run({id}, {}, {}));
  workload.steps = {{.kind = StepKind::kTrain, .end = 10}};
  Bound bound = bound_of(workload, node_of(400));
  // Three of four places are kept from use to use of others: a fraction of 3/9 of every gap.
  EXPECT_EQ(bound.hbm.fewest_in_bytes, 666u);
  EXPECT_EQ(bound.hbm.fewest_out_bytes, 0u) << "nothing is written";
  EXPECT_EQ(bound.total, microseconds(666));
  EXPECT_EQ(bound.limit, Limit::kHbmIn);
  for (auto& each : workload.runs) each.write = each.read;
  bound = bound_of(workload, node_of(400));
  EXPECT_EQ(bound.hbm.fewest_in_bytes, 666u);
  EXPECT_EQ(bound.hbm.fewest_out_bytes, 666u);
}

TEST(Bound, DirectionsThatSlowEachOtherDownTakeTheirTollOfOneAnother) {
  // Of each tensor 10 bytes fit beside the other; the rest goes out and comes in.
  const Workload workload = of({50, 50}, {run({0}, {0}, {}), run({1}, {1}, {})});
  Node node = node_of(60);
  const Bound alone = bound_of(workload, node);
  EXPECT_EQ(alone.hbm.both, std::max(alone.hbm.in, alone.hbm.out));
  ASSERT_EQ(alone.hbm.in, alone.hbm.out);
  node.hbm.both_bytes_per_s = kBytesPerMicrosecond * 8 / 5;  // each takes a quarter longer
  const Bound slowed = bound_of(workload, node);
  EXPECT_EQ(slowed.hbm.both, alone.hbm.in * 5 / 4);
  EXPECT_EQ(slowed.total, slowed.hbm.both);
  EXPECT_EQ(slowed.limit, Limit::kHbmBoth);
  node.hbm.both_bytes_per_s = kBytesPerMicrosecond / 2;  // then they had better take turns
  EXPECT_EQ(bound_of(workload, node).total, 2 * alone.hbm.in);
}

TEST(Bound, WhatIsOverwrittenNeedNotComeIn) {
  // Tensor 0 is written and read; while it waits, tensor 1 needs the room.
  const Workload workload = of({60, 60}, {run({}, {0}, {}), run({1}, {}, {}), run({0}, {}, {0})});
  const Bound bound = bound_of(workload, node_of(100));
  EXPECT_EQ(bound.hbm.fewest_in_bytes, 20u + 20u) << "40 of 60 bytes of each fit beside the other";
  EXPECT_EQ(bound.hbm.fewest_out_bytes, 20u) << "tensor 1 is clean";
}

TEST(Bound, WhatTheHostTouchesCrossesTheLink) {
  const Workload workload = of({50}, {run({0}, {0}, {}, 1, Place::kHbm), run({0}, {0}, {}, 1, Place::kHost)});
  const Bound bound = bound_of(workload, node_of(1000, 1000, 1000));
  EXPECT_EQ(bound.hbm.fewest_in_bytes, 50u);
  EXPECT_EQ(bound.hbm.fewest_out_bytes, 50u);
  EXPECT_EQ(bound.block.fewest_in_bytes, 0u);
  EXPECT_EQ(bound.block.fewest_out_bytes, 0u);
}

TEST(Bound, TheBlockLinksMemoryIsHbmAndHostTogether) {
  Workload workload = of(std::vector<std::uint64_t>(4, 100), {});
  for (TensorId id = 0; id < 4; ++id) workload.runs.push_back(run({id}, {}, {}));
  workload.steps = {{.kind = StepKind::kTrain, .end = 4}};
  EXPECT_EQ(bound_of(workload, node_of(100, 300, 1000)).block.fewest_in_bytes, 0u);
  const Bound bound = bound_of(workload, node_of(100, 200, 1000));
  EXPECT_EQ(bound.block.fewest_in_bytes, 133u) << "two thirds of every gap are kept";
  EXPECT_EQ(bound.hbm.fewest_in_bytes, 400u);
}

TEST(Bound, AWindowMustMoveOutWhatIsBornInIt) {
  // 100 bytes are born in each of three runs of a microsecond, and needed after a long one; 150 of them fit.
  const Workload workload =
      of({100, 100, 100}, {run({}, {0}, {}), run({}, {1}, {}), run({}, {2}, {}), run({}, {}, {}, 1000),
                           run({2}, {}, {2}, 100), run({1}, {}, {1}, 100), run({0}, {}, {0}, 100)});
  const Bound bound = bound_of(workload, node_of(150));
  // The three take 150 us after the first of them; the others compute for 1301.
  EXPECT_EQ(bound.hbm.window_out.step, microseconds(1451));
  EXPECT_EQ(bound.hbm.window_out.first, 0u);
  EXPECT_EQ(bound.hbm.window_out.last, 2u);
  EXPECT_EQ(bound.total, microseconds(1451));
  EXPECT_EQ(bound.limit, Limit::kHbmWindowOut);
}

TEST(Bound, AWindowMayGoAroundTheEnd) {
  const Workload workload =
      of({100, 100}, {run({}, {1}, {}), run({}, {}, {}, 1000), run({1}, {}, {1}), run({0}, {}, {0}), run({}, {0}, {})});
  EXPECT_EQ(bound_of(workload, node_of(150)).hbm.window_out.step, microseconds(1003 + 50));
}

TEST(Bound, AWindowMustHaveComeInWhatItReadsFirst) {
  // Three runs of a microsecond read 100 bytes each; 150 of them can be there when the first begins.
  const Workload workload =
      of({100, 100, 100}, {run({0}, {}, {}), run({1}, {}, {}), run({2}, {}, {}), run({}, {}, {}, 1000)});
  const Bound bound = bound_of(workload, node_of(150));
  EXPECT_EQ(bound.hbm.window_in.step, microseconds(1151));
  EXPECT_EQ(bound.hbm.window_in.first, 0u);
  EXPECT_EQ(bound.hbm.window_in.last, 2u);
  EXPECT_EQ(bound.limit, Limit::kHbmWindowIn);
  ASSERT_NE(bound.window(), nullptr);
  EXPECT_EQ(bound.window()->step, bound.total);
}

TEST(Bound, WhatTheHostWritesInAWindowComesInThoughMemoryHadRoom) {
  const Workload workload = of({50, 50}, {run({0, 1}, {}, {}), run({0, 1}, {0, 1}, {}, 1, Place::kHost),
                                          run({0, 1}, {}, {}), run({}, {}, {}, 1000)});
  EXPECT_EQ(bound_of(workload, node_of(100, 1000, 1000)).hbm.window_in.step, microseconds(1101));
}

TEST(Bound, NamesARunThatNeverFits) {
  const Result<Bound> bound = lower_bound(of({100, 100}, {run({0}, {1}, {})}), node_of(150));
  ASSERT_FALSE(bound);
  EXPECT_EQ(bound.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(bound.error().message, HasSubstr("run 0, \"r\", needs 200 bytes in hbm"));
}

// A small workload that a reader takes, of at most `kTensors` tensors.
class SmallWorkloads {
 public:
  static constexpr std::size_t kTensors = 4;
  SmallWorkloads(std::uint64_t seed, std::uint64_t bytes_min, std::uint64_t bytes_max)
      : random_(seed), bytes_min_(bytes_min), bytes_max_(bytes_max) {}

  Workload next() {
    for (;;) {
      Workload workload = any();
      std::ostringstream out;
      write(workload, out);
      if (read(out.str(), "small")) return workload;
    }
  }
  std::uint64_t below(std::uint64_t end) { return std::uniform_int_distribution<std::uint64_t>(0, end - 1)(random_); }

 private:
  Workload any() {
    std::vector<std::uint64_t> bytes(kTensors);
    for (std::uint64_t& size : bytes) size = bytes_min_ + below(bytes_max_ - bytes_min_ + 1);
    std::vector<Run> runs(3 + below(5));
    for (Run& each : runs) {
      const Place place = below(5) == 0 ? Place::kHost : Place::kHbm;  // drawn first, whatever the compiler
      each = run({}, {}, {}, static_cast<std::int64_t>(below(4)), place);
      for (TensorId id = 0; id < kTensors; ++id) {
        const std::uint64_t what = below(12);
        if (what < 4) each.read.push_back(id);
        if (what == 3 || what == 4) each.write.push_back(id);
        if (what == 5 || (what == 0 && below(3) == 0)) each.free.push_back(id);
      }
    }
    return of(bytes, std::move(runs));
  }

  std::mt19937_64 random_;
  std::uint64_t bytes_min_;
  std::uint64_t bytes_max_;
};

// The bounds and the bests of many workloads, one after another, by direction.
struct Sums {
  std::array<double, 2> bounds{};
  std::array<double, 2> bests{};
};

Sums search(std::uint64_t seed, std::uint64_t bytes_min, std::uint64_t bytes_max) {
  SmallWorkloads small(seed, bytes_min, bytes_max);
  Sums sums;
  for (int round = 0; round < 100; ++round) {
    const Workload workload = small.next();
    std::uint64_t least = 0;
    for (const auto& each : workload.runs) least = std::max(least, leased_bytes(workload, each));
    const Node node = node_of(least + bytes_min * small.below(3), 1'000'000, 1'000'000);
    const Bound bound = bound_of(workload, node);
    for (const Direction direction : {Direction::kIn, Direction::kOut}) {
      const double best = best_bytes(workload, node.hbm_bytes, direction);
      const auto proven = static_cast<double>(bound.hbm.fewest_bytes(direction));
      EXPECT_LE(proven, best + 1e-6) << "seed " << seed << ", round " << round;
      sums.bounds[static_cast<std::size_t>(direction)] += proven;
      sums.bests[static_cast<std::size_t>(direction)] += best;
    }
  }
  return sums;
}

TEST(Bound, NeverPassesTheBestOfAllSchedules) {
  const Sums sums = search(20240607, 1000, 9000);
  EXPECT_GT(sums.bests[0], 0);
  EXPECT_GT(sums.bests[1], 0);
}

// Where all tensors have the same size, keeping parts of them saves nothing: the bound is the best.
TEST(Bound, IsTheBestWhereTensorsAreAlike) {
  const Sums sums = search(20240608, 1000, 1000);
  EXPECT_GE(sums.bounds[0], 0.99 * sums.bests[0]);
  EXPECT_GE(sums.bounds[1], 0.99 * sums.bests[1]);
}

// The definition of both windows of HBM, window by window.
struct ByHand {
  Duration in{};
  Duration out{};
};
ByHand longest_windows_by_hand(const Workload& workload, std::uint64_t capacity_bytes) {
  const std::size_t count = workload.runs.size();
  const auto run_at = [&](std::size_t at) -> const Run& { return workload.runs[at % count]; };
  const auto has = [](const std::vector<TensorId>& ids, TensorId id) {
    return std::ranges::find(ids, id) != ids.end();
  };
  ByHand longest;
  for (std::size_t begin = 0; begin < count; ++begin) {
    for (std::size_t end = begin; end < begin + count; ++end) {
      Duration inside{};
      for (std::size_t at = begin; at <= end; ++at) inside += run_at(at).compute;
      std::uint64_t owed = 0;
      std::uint64_t wanted = 0;
      for (TensorId id = 0; id < workload.tensors.size(); ++id) {
        const std::uint64_t bytes = workload.tensors[id].bytes;
        bool born = false;
        bool elsewhere = true;  // than in HBM since the window began, whatever was there then
        for (std::size_t at = begin; at <= end; ++at) {
          const bool inside_hbm = run_at(at).place == Place::kHbm;
          if (inside_hbm && elsewhere && has(run_at(at).read, id)) wanted += bytes;
          if (inside_hbm && (has(run_at(at).read, id) || has(run_at(at).write, id))) elsewhere = false;
          if (!inside_hbm && has(run_at(at).write, id)) elsewhere = true;
          if (has(run_at(at).write, id)) born = inside_hbm;
          if (has(run_at(at).free, id)) born = false;
        }
        bool needed = false;
        for (std::size_t at = end + 1; at <= end + count; ++at) {
          needed = needed || has(run_at(at).read, id);
          if (has(run_at(at).write, id) || has(run_at(at).free, id)) break;
        }
        if (born && needed) owed += bytes;
      }
      const auto take = [&](std::uint64_t bytes, const Run& left_out, Duration& most) {
        const auto moved = microseconds(bytes > capacity_bytes ? bytes - capacity_bytes : 0);
        const Duration meanwhile = inside - left_out.compute;
        if (moved > meanwhile) most = std::max(most, compute_time(workload.runs) - meanwhile + Duration(moved));
      };
      take(owed, run_at(begin), longest.out);
      take(wanted, run_at(end), longest.in);
    }
  }
  return longest;
}

TEST(Bound, WindowsAreThoseOfTheDefinition) {
  constexpr std::uint64_t kSeed = 7;
  RecordProperty("seed", static_cast<int>(kSeed));
  SmallWorkloads small(kSeed, 1, 9);
  int windows_in = 0;
  int windows_out = 0;
  for (int round = 0; round < 300; ++round) {
    const Workload workload = small.next();
    std::uint64_t least = 0;
    for (const auto& each : workload.runs) least = std::max(least, leased_bytes(workload, each));
    const ByHand by_hand = longest_windows_by_hand(workload, least);
    const Bound bound = bound_of(workload, node_of(least, 1000, 0));
    EXPECT_EQ(bound.hbm.window_out.step, by_hand.out) << "seed " << kSeed << ", round " << round;
    EXPECT_EQ(bound.hbm.window_in.step, by_hand.in) << "seed " << kSeed << ", round " << round;
    windows_out += by_hand.out > Duration{} ? 1 : 0;
    windows_in += by_hand.in > Duration{} ? 1 : 0;
  }
  EXPECT_GE(windows_out, 5) << "too few of them say anything";
  EXPECT_GE(windows_in, 5) << "too few of them say anything";
}

class G10Files : public testing::TestWithParam<std::pair<std::string, double>> {};

TEST_P(G10Files, SayWhatIsKnownOfThem) {
  const char* folder = std::getenv("TERRACE_WORKLOADS");
  if (folder == nullptr) GTEST_SKIP() << "TERRACE_WORKLOADS does not name a folder with the G10 workloads";
  const auto [name, fewest] = GetParam();
  const Node node = *reference_node("g10-2tier");
  const Result<Workload> workload = load(std::string(folder) + "/" + name + ".jsonl", &node);
  ASSERT_TRUE(workload) << workload.error().message;
  const Bound bound = bound_of(*workload, node);
  EXPECT_EQ(bound.total, bound.compute);
  EXPECT_NEAR(static_cast<double>(bound.hbm.fewest_in_bytes) / 1e9, fewest, 0.005);
}

// Of three tiers: the seconds that the windows say, and where.
struct ThreeTiers {
  std::string name;
  double seconds;
};

class ThreeTierFiles : public testing::TestWithParam<ThreeTiers> {};

TEST_P(ThreeTierFiles, AreBoundByAWindowOfTheBlockLink) {
  const char* folder = std::getenv("TERRACE_WORKLOADS");
  if (folder == nullptr) GTEST_SKIP() << "TERRACE_WORKLOADS does not name a folder with the workloads";
  const Node node = *reference_node("g10");
  const Result<Workload> workload = load(std::string(folder) + "/" + GetParam().name + ".jsonl", &node);
  ASSERT_TRUE(workload) << workload.error().message;
  const Bound bound = bound_of(*workload, node);
  EXPECT_EQ(bound.total, std::max(bound.block.window_in.step, bound.block.window_out.step));
  EXPECT_NEAR(std::chrono::duration<double>(bound.total).count(), GetParam().seconds, 0.005);
}

INSTANTIATE_TEST_SUITE_P(, ThreeTierFiles,
                         testing::Values(ThreeTiers{"host-adam-block", 106.05},
                                         ThreeTiers{"accumulate-evaluate", 47.63}, ThreeTiers{"two-models", 31.68}),
                         [](const auto& file) {
                           std::string name = file.param.name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

INSTANTIATE_TEST_SUITE_P(, G10Files,
                         testing::Values(std::pair<std::string, double>{"g10-bert-base", 8.33},
                                         std::pair<std::string, double>{"g10-vit", 18.68}));

}  // namespace
}  // namespace terrace::workload
