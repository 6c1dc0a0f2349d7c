// SPDX-License-Identifier: Apache-2.0
// A plan is followed by what is leased: what is not in it strays, and does no harm; what it brings is there before it
// is leased; and one that has nothing to do with what happens is given up.
#include <gtest/gtest.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kTensors = 6;  // the device tier has room for four
constexpr std::int64_t kApartNs = 1'000'000'000;

struct Planned {
  Harness harness{[] {
    Options options = three_tiers();
    options.make_policy = make_next_use_policy;
    options.observe = true;
    return options;
  }()};
  Harness::Client& client = *harness.open();
  std::vector<Handle> tensors;

  Planned() {
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      tensors.push_back(harness.create(client, std::to_string(i), kMiB));
      harness.write(client, tensors.back(), i);
    }
    for (const Handle tensor : tensors) EXPECT_TRUE(harness.ask(client.id, Evict{{tensor}}));
  }

  void mark_step() { ASSERT_TRUE(harness.ask(client.id, MarkStep{})); }
  void read(std::uint32_t tensor) { EXPECT_EQ(harness.read(client, tensors[tensor]), tensor); }
  bool is_in_device(std::uint32_t tensor) {
    harness.settle();
    return client.slots[index(tensors[tensor].slot)].place == kDevice;
  }
  // Reads of the tensors in this order, a second apart.
  foresight::Plan plan_of(const std::vector<std::uint32_t>& order) const {
    foresight::Plan plan;
    plan.number = 7;
    for (const std::uint32_t tensor : order)
      plan.uses.push_back({.slot = tensors[tensor].slot,
                           .place = kDevice,
                           .at_ns = static_cast<std::int64_t>(plan.uses.size()) * kApartNs});
    plan.period_ns = static_cast<std::int64_t>(order.size()) * kApartNs;
    return plan;
  }
  void plan(foresight::Plan plan) {
    harness.engine->plan(harness.now, client.id, std::make_shared<const foresight::Plan>(std::move(plan)));
    harness.drain();
  }
  SessionStatus session() { return harness.status().sessions.front(); }
};

TEST(Foreseen, UsesOfThePlanAreMatchedAndOthersStray) {
  Planned planned;
  planned.mark_step();
  planned.plan(planned.plan_of({0, 1, 2}));
  EXPECT_EQ(planned.session().plan, 7u);
  planned.read(0);
  planned.read(5);
  planned.read(2);
  planned.read(1);
  EXPECT_EQ(planned.session().matched, 3u) << "in whatever order";
  EXPECT_EQ(planned.session().strayed, 1u);
}

TEST(Foreseen, WhatThePlanBringsIsThereBeforeItIsLeased) {
  Planned planned;
  planned.mark_step();
  foresight::Plan plan = planned.plan_of({0, 1, 2});
  plan.fetches.push_back({.from = 1, .slot = planned.tensors[2].slot, .place = kDevice, .due_ns = 2 * kApartNs});
  planned.plan(std::move(plan));
  EXPECT_FALSE(planned.is_in_device(2)) << "not before the session has come so far";
  planned.read(0);
  EXPECT_TRUE(planned.is_in_device(2));
  EXPECT_EQ(planned.harness.status().foresight.planned_bytes, kMiB);
}

TEST(Foreseen, WhatIsNeededSoonerDoesNotGoForWhatAPlanBrings) {
  Planned planned;
  planned.mark_step();
  for (const std::uint32_t tensor : {0, 1, 2, 3}) planned.read(tensor);
  foresight::Plan plan = planned.plan_of({0, 1, 2, 3, 4});
  plan.fetches.push_back({.from = 0, .slot = planned.tensors[4].slot, .place = kDevice, .due_ns = 4 * kApartNs});
  planned.mark_step();
  planned.plan(std::move(plan));
  for (const std::uint32_t tensor : {0, 1, 2, 3}) EXPECT_TRUE(planned.is_in_device(tensor)) << tensor;
  EXPECT_FALSE(planned.is_in_device(4));
}

// A step begins with a plan of many uses, of two tensors by turns, in which tensor 5 comes but once; tensor 4 is
// fetched from the 30th use on.
void begin_far_plan(Planned& planned) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < 60; ++i) order.push_back(i % 2);
  order[40] = 5;
  for (const std::uint32_t i : {41, 43, 45}) order[i] = 2;
  planned.mark_step();
  foresight::Plan plan = planned.plan_of(order);
  plan.fetches.push_back({.from = 30, .slot = planned.tensors[4].slot, .place = kDevice, .due_ns = 50 * kApartNs});
  planned.plan(std::move(plan));
}

TEST(Foreseen, OneAccessFarAheadIsNotBelieved) {
  Planned planned;
  begin_far_plan(planned);
  planned.read(0);
  planned.read(5);
  planned.read(1);
  EXPECT_FALSE(planned.is_in_device(4)) << "the session has not come so far";
  EXPECT_EQ(planned.session().matched, 2u);
  EXPECT_EQ(planned.session().strayed, 1u);
}

TEST(Foreseen, TwoAccessesFarAheadAreWhereTheSessionIs) {
  Planned planned;
  begin_far_plan(planned);
  planned.read(0);
  planned.read(5);
  planned.read(2);
  EXPECT_TRUE(planned.is_in_device(4));
}

TEST(Foreseen, APlanOfSomethingElseIsGivenUp) {
  Planned planned;
  planned.mark_step();
  planned.plan(planned.plan_of({0, 1, 2}));
  for (int i = 0; i < 5'000; ++i) planned.read(static_cast<std::uint32_t>(3 + i % 3));
  EXPECT_EQ(planned.session().plan, 0u);
  planned.plan(planned.plan_of({0, 1, 2}));
  planned.read(0);
  EXPECT_EQ(planned.session().matched, 1u) << "the next one is followed";
}

TEST(Foreseen, ADeletedTensorsSlotIsForeseenNoLonger) {
  Planned planned;
  planned.mark_step();
  foresight::Plan plan = planned.plan_of({0, 1, 2});
  plan.fetches.push_back({.from = 0, .slot = planned.tensors[1].slot, .place = kDevice, .due_ns = kApartNs});
  ASSERT_TRUE(planned.harness.ask(planned.client.id, DeleteTensors{{planned.tensors[1]}}));
  planned.plan(std::move(plan));
  planned.read(0);
  EXPECT_EQ(planned.harness.status().foresight.planned_bytes, 0u);
}

TEST(Foreseen, SessionsThatMarkNoStepsAreNotObserved) {
  Planned planned;
  planned.read(0);
  const std::vector<Access> log{{planned.tensors[0].slot, shm::Mode::kRead}};
  const auto observations = [&] {
    planned.harness.engine->accessed(planned.harness.now, planned.client.id, log, log.size());
    return planned.harness.engine->take_output().observations.size();
  };
  EXPECT_EQ(observations(), 0u);
  planned.mark_step();
  EXPECT_EQ(observations(), 1u);
}

}  // namespace
}  // namespace terrace::engine
