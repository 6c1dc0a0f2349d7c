// SPDX-License-Identifier: Apache-2.0
// Steps are learned by kind, waits are not taken for compute, and a plan comes with the second step of a kind.
#include "foresight/learner.h"

#include <gtest/gtest.h>

namespace terrace::foresight {
namespace {

constexpr std::uint32_t kDevice = 1;

struct Watched {
  Learner learner{[] {
    Machine machine;
    machine.devices.push_back({kDevice, 100, {1e9, 0}, {1e9, 0}});
    return machine;
  }()};
  Time now{1'000'000};

  std::optional<Plan> step(std::uint32_t kind = 0) {
    Observation seen;
    seen.kind = Observation::Kind::kStep;
    seen.step_kind = kind;
    seen.at = now;
    return learner.observe(seen);
  }
  void use(std::uint32_t slot, Duration compute, Duration waited = {}) {
    now = now + waited;
    Observation seen;
    seen.kind = Observation::Kind::kUsed;
    seen.slot = Slot{slot};
    seen.place = kDevice;
    seen.bytes = 60;
    seen.at = now;
    seen.waited = waited;
    EXPECT_FALSE(learner.observe(seen));
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

TEST(Learner, TheOrderWithinASetDoesNotMatter) {
  Watched watched;
  watched.step();
  watched.use(2, Duration::zero());
  watched.use(1, Duration(10'000));
  watched.step();
  watched.use(1, Duration::zero());
  watched.use(2, Duration(10'000));
  watched.step();
  EXPECT_EQ(watched.learner.confidence().match.matched, 2u);
  EXPECT_EQ(watched.learner.confidence().match.added, 0u);
}

}  // namespace
}  // namespace terrace::foresight
