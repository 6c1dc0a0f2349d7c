// SPDX-License-Identifier: Apache-2.0
// Steps are learned by kind, waits are not taken for compute, and a plan comes with the second step of a kind.
#include "foresight/learner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace terrace::foresight {
namespace {

constexpr std::uint32_t kPlace = 1;

struct Watched {
  explicit Watched(std::uint64_t capacity_bytes = 100) {
    machine.devices.push_back({kPlace, capacity_bytes, {1e9, 0}, {1e9, 0}});
    learner.emplace(machine);
  }
  Machine machine;
  std::optional<Learner> learner;
  double weight = 1;
  Time now{1'000'000};

  std::optional<Plan> step(std::uint32_t kind = 0) {
    Observation seen;
    seen.kind = Observation::Kind::kStep;
    seen.step_kind = kind;
    seen.weight = weight;
    seen.at = now;
    return learner->observe(seen);
  }
  void forget(std::uint32_t slot) {
    Observation seen;
    seen.kind = Observation::Kind::kForgotten;
    seen.slot = Slot{slot};
    seen.at = now;
    EXPECT_FALSE(learner->observe(seen));
  }
  void use(std::uint32_t slot, Duration compute, Duration waited = {}, std::uint64_t bytes = 60,
           shm::Mode mode = shm::Mode::kRead) {
    now = now + waited;
    Observation seen;
    seen.kind = Observation::Kind::kUsed;
    seen.slot = Slot{slot};
    seen.place = kPlace;
    seen.bytes = bytes;
    seen.mode = mode;
    seen.at = now;
    seen.waited = waited;
    EXPECT_FALSE(learner->observe(seen));
    now = now + compute;
  }
};

TEST(Learner, PlansTheSecondStep) {
  Watched watched;
  EXPECT_FALSE(watched.step());
  watched.use(1, Duration(10'000));
  watched.use(2, Duration(10'000));
  const auto plan = watched.step();
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->uses.size(), 2u);
  EXPECT_EQ(plan->uses[0].slot, Slot{1});
  EXPECT_EQ(plan->uses[0].next_ns, 20'000) << "it comes again in the next step";
  EXPECT_EQ(plan->period_ns, 20'000);
}

TEST(Learner, PlansTheFirstStepOfADeclaredKind) {
  Watched watched;
  const auto declare = [&](std::uint32_t slot, std::int64_t at_ns, bool first) {
    Observation seen;
    seen.kind = Observation::Kind::kDeclared;
    seen.slot = Slot{slot};
    seen.place = kPlace;
    seen.bytes = 60;
    seen.first = first;
    seen.at = Time{at_ns};
    seen.waited = Duration(10'000);
    EXPECT_FALSE(watched.learner->observe(seen));
  };
  declare(9, 0, true);
  declare(1, 0, true);
  declare(2, 10'000, false);
  const auto plan = watched.step();
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->uses.size(), 2u) << "what was declared before does not count";
  EXPECT_EQ(plan->uses[0].slot, Slot{1});
  EXPECT_EQ(plan->uses[1].at_ns, 10'000);
  EXPECT_EQ(plan->period_ns, 20'000);
  watched.use(1, Duration(10'000));
  watched.use(2, Duration(10'000));
  const auto next = watched.step();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->match.matched, 2u) << "it was as it was declared";
}

TEST(Learner, WaitsAreNoCompute) {
  Watched watched;
  watched.step();
  watched.use(1, Duration(10'000), Duration(5'000'000));
  watched.use(2, Duration(10'000), Duration(7'000'000));
  const auto plan = watched.step();
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->period_ns, 20'000);
  EXPECT_EQ(plan->uses[1].at_ns, 10'000);
}

TEST(Learner, AKindIsPlannedByItsOwnTemplate) {
  Watched watched;
  watched.step(1);
  watched.use(1, Duration(10'000));
  EXPECT_FALSE(watched.step(0)) << "of this kind nothing is known";
  watched.use(7, Duration(10'000));
  const auto plan = watched.step(1);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->uses.size(), 1u);
  EXPECT_EQ(plan->uses[0].slot, Slot{1});
  EXPECT_EQ(plan->uses[0].next_ns, 20'000) << "not in the step of the other kind that is expected in between";
}

TEST(Learner, AStepIsLearnedByTheKindBeforeItToo) {
  // Two steps of kind 1 and one of kind 0, over and over; the first of the two does something else than the second.
  Watched watched;
  const auto plan_then_use = [&](std::uint32_t kind, std::uint32_t slot) {
    const auto plan = watched.step(kind);
    watched.use(slot, Duration(10'000));
    return plan;
  };
  for (int cycle = 0; cycle < 2; ++cycle) {
    plan_then_use(1, 11);
    plan_then_use(1, 12);
    plan_then_use(0, 7);
  }
  for (const auto& [kind, slot] : {std::pair{1u, 11u}, {1u, 12u}, {0u, 7u}}) {
    const auto plan = plan_then_use(kind, slot);
    ASSERT_TRUE(plan);
    ASSERT_EQ(plan->uses.size(), 1u);
    EXPECT_EQ(plan->uses[0].slot, Slot{slot});
    EXPECT_EQ(plan->uses[0].next_ns, 30'000) << "when the next cycle comes there";
  }
}

// Steps of one kind, each of two of its own tensors.
std::optional<Plan> turn(Watched& watched, std::uint32_t slot) {
  auto plan = watched.step();
  watched.use(slot, Duration(10'000));
  watched.use(slot + 1, Duration(10'000));
  return plan;
}

TEST(Learner, StepsOfOneKindThatTakeTurnsAreLearnedEachByItself) {
  Watched watched;
  for (int step = 0; step < 8; ++step) turn(watched, 10 * static_cast<std::uint32_t>(step % 3));
  for (int step = 8; step < 14; ++step) {
    const auto slot = 10 * static_cast<std::uint32_t>(step % 3);
    const auto plan = turn(watched, slot);
    ASSERT_TRUE(plan) << step;
    ASSERT_EQ(plan->uses.size(), 2u) << step;
    EXPECT_EQ(plan->uses[0].slot, Slot{slot}) << step;
    EXPECT_EQ(plan->uses[0].next_ns, 60'000) << "three turns later";
  }
  for (int step = 0; step < 4; ++step) turn(watched, 50);  // they take no turns any more
  const auto plan = turn(watched, 50);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->uses.size(), 2u);
  EXPECT_EQ(plan->uses[0].slot, Slot{50});
  EXPECT_EQ(plan->uses[0].next_ns, 20'000);
}

TEST(Learner, StepsThatDifferAtRandomTakeNoTurns) {
  Watched watched;
  const auto step_of = [&](std::uint32_t seed) {
    const auto plan = watched.step();
    for (std::uint32_t slot = 0; slot < 60; ++slot)  // two thirds are always the same
      watched.use(slot < 40 ? slot : 100 + (slot * 7 + seed * 31) % 97, Duration(1'000), {}, 1);
    return plan;
  };
  for (std::uint32_t step = 0; step < 12; ++step) {
    const auto plan = step_of(step * step);
    EXPECT_EQ(plan.has_value(), step > 0) << "nothing is forgotten";
  }
}

TEST(Learner, ARoundOfManyStepsIsPlannedToItsEnd) {
  Watched watched;
  std::optional<Plan> plan;
  for (int step = 0; step < 3 * 30; ++step) {
    const std::uint32_t kind = step % 30 == 29 ? 0 : 1;
    auto made = watched.step(kind);
    if (kind == 0) plan = std::move(made);
    watched.use(kind == 0 ? 7 : 1, Duration(10'000));
  }
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->uses.size(), 1u);
  EXPECT_EQ(plan->uses[0].next_ns, 300'000);
}

TEST(Learner, AfterAWaitThatWasNotForeseenFetchesMayBeginEarlierForAWhile) {
  // Tensor 1 goes for tensor 2, and comes back for the next step. Its room is free for the 40 runs before.
  constexpr auto kRun = std::chrono::milliseconds(50);
  Watched watched;
  const auto runs_ahead = [&](Duration waited) -> std::uint32_t {
    const auto plan = watched.step();
    watched.use(1, kRun, waited);
    watched.use(2, kRun, {}, 60, shm::Mode::kOverwrite);
    watched.forget(2);
    for (int run = 0; run < 40; ++run) watched.use(3, kRun, {}, 1);
    if (!plan) return 0;
    const PlannedFetch& returns = plan->fetches.back();  // behind what makes sure of the step's own uses
    EXPECT_EQ(returns.slot, Slot{1});
    return static_cast<std::uint32_t>(plan->uses.size()) - returns.from;
  };
  runs_ahead({});
  EXPECT_EQ(runs_ahead({}), 2u) << "100 ms";
  EXPECT_EQ(runs_ahead(std::chrono::milliseconds(600)), 2u);
  EXPECT_EQ(runs_ahead({}), 12u) << "600 ms";
  EXPECT_EQ(runs_ahead({}), 6u) << "half of it";
}

TEST(Learner, FetchesWhatWentSinceTheLastStepOfItsKindInTime) {
  // Three steps of kind 1 and one of kind 0, which alone uses tensors 11 to 13, at its end. They go for tensor 2, and
  // take as long as ten runs each to come back.
  constexpr auto kRun = std::chrono::milliseconds(50);
  constexpr std::uint32_t kRuns = 40;
  Watched watched(200);
  watched.machine.devices[0].in = watched.machine.devices[0].out = {60 / 0.5, 0};
  watched.learner.emplace(watched.machine);
  std::optional<Plan> last;
  for (int step = 0; step < 12; ++step) {
    const std::uint32_t kind = step % 4 == 3 ? 0 : 1;
    if (const auto plan = watched.step(kind); kind == 0) last = plan;
    watched.use(2, kRun, {}, 180, shm::Mode::kOverwrite);
    watched.forget(2);
    for (std::uint32_t run = 0; run < kRuns; ++run) watched.use(3, kRun, {}, 1);
    for (std::uint32_t slot = 11; slot < 14 && kind == 0; ++slot) watched.use(slot, kRun);
  }
  ASSERT_TRUE(last);
  const auto first = std::ranges::min_element(
      last->fetches, {}, [](const PlannedFetch& fetch) { return fetch.slot >= Slot{11} ? fetch.from : UINT32_MAX; });
  ASSERT_NE(first, last->fetches.end());
  EXPECT_LE(first->from, kRuns - 25) << "the three take 30 runs, and 2 of them end while the first two are used";
  EXPECT_GT(first->from, 0u) << "not before their room is free";
}

// Whether the plan of two tensors, of which both fit the whole device and one a part of it, has one of them go.
bool gives_up(double weight, double other) {
  Watched watched(400);
  Watched beside(400);
  watched.weight = weight;
  beside.weight = other;
  std::optional<Plan> plan;
  for (int step = 0; step < 3; ++step) {
    Learner* const learners[] = {&*watched.learner, &*beside.learner};
    share(watched.machine, learners);
    beside.step();
    beside.use(1, Duration(10'000));
    plan = watched.step();
    watched.use(1, Duration(10'000));
    watched.use(2, Duration(10'000));
  }
  return plan && std::ranges::any_of(plan->uses, &PlannedUse::give_up);
}

TEST(Learner, PlansWithItsPartByWeight) {
  EXPECT_FALSE(gives_up(3, 1)) << "three quarters of 400 bytes hold both";
  EXPECT_TRUE(gives_up(1, 3)) << "and a quarter does not";
}

TEST(Learner, TheOrderWithinASetDoesNotMatter) {
  Watched watched;
  watched.step();
  watched.use(2, Duration::zero());
  watched.use(1, Duration(10'000));
  watched.step();
  watched.use(1, Duration::zero());
  watched.use(2, Duration(10'000));
  watched.step();
  EXPECT_EQ(watched.learner->confidence().match.matched, 2u);
  EXPECT_EQ(watched.learner->confidence().match.added, 0u);
}

}  // namespace
}  // namespace terrace::foresight
