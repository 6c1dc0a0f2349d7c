// SPDX-License-Identifier: Apache-2.0
// A plan is followed by what is leased: what is not in it strays, and does no harm; what it brings is there before it
// is leased; and one that has nothing to do with what happens is given up.
#include <gtest/gtest.h>

#include "unit/engine/planned.h"

namespace terrace::engine {
namespace {

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

// Two are there, and the one between them has to be fetched.
TEST(Foreseen, WhatIsReadInPassingIsNoUse) {
  Planned planned;
  planned.mark_step();
  planned.read(0);
  planned.read(2);
  ASSERT_TRUE(planned.harness.ask(planned.client.id, Prefetch{kDevice, {planned.tensors[3]}}));
  planned.plan(planned.plan_of({0, 1, 2}));
  const auto reply = planned.harness.ask(
      planned.client.id, Acquire{kDevice,
                                 shm::Mode::kRead,
                                 {planned.tensors[0], planned.tensors[1], planned.tensors[2], planned.tensors[3]},
                                 true});
  ASSERT_TRUE(reply);
  EXPECT_TRUE(planned.is_in_device(1));
  EXPECT_EQ(planned.harness.status().prefetches.used, 0u) << "the hint is not of this reading";
  EXPECT_EQ(planned.session().matched, 0u);
  EXPECT_EQ(planned.session().strayed, 0u);
  const auto writes =
      planned.harness.ask(planned.client.id, Acquire{kDevice, shm::Mode::kWrite, {planned.tensors[0]}, true});
  ASSERT_FALSE(writes);
  EXPECT_EQ(writes.error().code, ErrorCode::kInvalidArgument);
}

TEST(Foreseen, TheStatusSaysHowSureItIs) {
  Planned planned;
  planned.mark_step();
  planned.read(5);
  foresight::Plan plan = planned.plan_of({0, 1, 2});
  plan.kind = 2;
  plan.match = {.matched = 2, .missed = 1, .added = 1};
  plan.fetches.push_back({.from = 1, .slot = planned.tensors[2].slot, .place = kDevice, .due_ns = 2 * kApartNs});
  planned.plan(std::move(plan));
  for (const std::uint32_t tensor : {0U, 1U, 2U, 4U}) planned.read(tensor);
  const SessionStatus status = planned.session();
  EXPECT_EQ(status.plan_kind, 2u);
  EXPECT_EQ(status.plan_uses, 3u);
  EXPECT_EQ(status.plan_match.matched, 2u);
  EXPECT_EQ(status.matched, 3u);
  EXPECT_EQ(status.strayed, 1u);
  EXPECT_EQ(status.planned_bytes, kMiB);
  EXPECT_EQ(status.demanded_bytes, 4 * kMiB);
  planned.plan({});
  EXPECT_EQ(planned.session().plan_uses, 0u) << "nothing is followed";
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

// Of a long step nearly nothing happens: the next one begins at the plan's first use all the same, and its fetches
// come.
TEST(Foreseen, AStepOfWhichMostDidNotHappenIsFollowedByOneThatDoes) {
  Planned planned;
  planned.mark_step();
  std::vector<std::uint32_t> order = {0, 1, 2};
  while (order.size() < 3000) order.push_back(order.size() % 2);
  foresight::Plan plan = planned.plan_of(order);
  plan.fetches.push_back({.from = 1, .slot = planned.tensors[2].slot, .place = kDevice, .due_ns = 2 * kApartNs});
  planned.plan(std::move(plan));
  planned.read(0);
  EXPECT_TRUE(planned.is_in_device(2));
  planned.mark_step();
  ASSERT_TRUE(planned.harness.ask(planned.client.id, Evict{{planned.tensors[2]}}));
  EXPECT_FALSE(planned.is_in_device(2));
  planned.read(0);
  EXPECT_TRUE(planned.is_in_device(2));
  EXPECT_EQ(planned.session().strayed, 0u);
}

TEST(Foreseen, WhatIsNeededSoonerDoesNotGoForWhatAPlanBrings) {
  Planned planned;
  planned.mark_step();
  for (const std::uint32_t tensor : {0U, 1U, 2U, 3U}) planned.read(tensor);
  foresight::Plan plan = planned.plan_of({0, 1, 2, 3, 4});
  plan.fetches.push_back({.from = 0, .slot = planned.tensors[4].slot, .place = kDevice, .due_ns = 4 * kApartNs});
  planned.mark_step();
  planned.plan(std::move(plan));
  for (const std::uint32_t tensor : {0U, 1U, 2U, 3U}) EXPECT_TRUE(planned.is_in_device(tensor)) << tensor;
  EXPECT_FALSE(planned.is_in_device(4));
}

TEST(Foreseen, AWriteBackBeginsWhenItsWriteIsOverWhateverComesNext) {
  Planned planned;
  Harness& harness = planned.harness;
  planned.mark_step();
  foresight::Plan plan = planned.plan_of({0, 1, 2});
  plan.cleans.push_back({.after = 3, .slot = planned.tensors[1].slot, .place = kDevice, .write = 1});
  planned.plan(std::move(plan));
  const auto stir = [&] {
    harness.engine->accessed(harness.now, planned.client.id, {}, 0);
    harness.drain();
    return harness.transfers.size();
  };
  harness.write(planned.client, planned.tensors[0], 0);
  EXPECT_EQ(stir(), 0u);
  ASSERT_TRUE(harness.acquire(planned.client, kDevice, shm::Mode::kOverwrite, {planned.tensors[1]}));
  EXPECT_EQ(stir(), 0u) << "not while it is written";
  harness.fill(planned.client, planned.tensors[1], 1);
  harness.release(planned.client, planned.tensors[1], shm::Mode::kOverwrite);
  EXPECT_EQ(stir(), 1u);
}

TEST(Foreseen, WhatShouldHaveBeenWrittenDownBeforeIsIfItStillGoes) {
  Planned planned;
  Harness& harness = planned.harness;
  planned.mark_step();
  foresight::Plan first = planned.plan_of({0, 1});
  first.uses[0].give_up = true;
  for (foresight::PlannedUse& use : first.uses) use.next_ns = use.at_ns + 2 * kApartNs;
  planned.plan(std::move(first));
  for (const std::uint32_t tensor : {0U, 1U}) harness.write(planned.client, planned.tensors[tensor], 7);
  planned.mark_step();
  foresight::Plan second = planned.plan_of({0, 1});
  for (const std::uint32_t tensor : {0U, 1U})
    second.cleans.push_back({.slot = planned.tensors[tensor].slot, .place = kDevice, .overdue = true});
  planned.plan(std::move(second));
  ASSERT_EQ(harness.transfers.size(), 1u) << "of the one that the former plan has go";
  EXPECT_EQ(harness.transfers.front().link.kind, mover::LinkKind::kDeviceToHost);
  harness.settle();
  EXPECT_TRUE(harness.transfers.empty());
}

TEST(Foreseen, WhatMemoryWritesDownWaitsForADeviceThatIsLateWithIt) {
  Planned planned;
  Harness& harness = planned.harness;
  planned.mark_step();
  foresight::Plan plan = planned.plan_of({0, 1, 2});
  plan.uses[0].give_up = true;
  for (foresight::PlannedUse& use : plan.uses) use.next_ns = use.at_ns + 3 * kApartNs;
  plan.cleans.push_back({.after = 2, .slot = planned.tensors[0].slot, .place = kHost});
  planned.plan(std::move(plan));
  for (const std::uint32_t tensor : {0U, 1U}) harness.write(planned.client, planned.tensors[tensor], 7);
  harness.settle();
  ASSERT_EQ(link_bytes(harness, mover::LinkKind::kBlockWrite), kTensors * kMiB) << "of before the plan alone";
  for (const std::uint32_t tensor : {2U, 3U, 4U, 5U}) harness.write(planned.client, planned.tensors[tensor], 7);
  harness.settle();
  EXPECT_EQ(link_bytes(harness, mover::LinkKind::kBlockWrite), (kTensors + 1) * kMiB);
}

TEST(Foreseen, APlannedWriteBackWaitsForASlide) {
  Planned planned;
  Harness& harness = planned.harness;
  planned.mark_step();
  const Handle wide = harness.create(planned.client, "wide", 2 * kMiB);
  harness.write(planned.client, wide, 5000, kHost);
  for (const std::uint32_t tensor : {0U, 1U, 2U, 3U}) harness.write(planned.client, planned.tensors[tensor], 7);
  harness.settle();
  ASSERT_TRUE(harness.ask(planned.client.id, DontNeed{{planned.tensors[0], planned.tensors[2]}}));
  harness.send(planned.client.id, Prefetch{kDevice, {wide}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  ASSERT_EQ(harness.transfers.front().link.kind, mover::LinkKind::kMemcpy) << "of tensor 1, or of tensor 3";
  const std::uint64_t before = link_bytes(harness, mover::LinkKind::kDeviceToHost);
  foresight::Plan plan = planned.plan_of({1, 3});
  for (const std::uint32_t tensor : {1U, 3U})
    plan.cleans.push_back({.slot = planned.tensors[tensor].slot, .place = kDevice});
  planned.plan(std::move(plan));
  harness.settle();
  EXPECT_EQ(link_bytes(harness, mover::LinkKind::kDeviceToHost), before + 2 * kMiB);
}

// A step begins with a plan of many uses, of two tensors by turns, in which tensor 5 comes but once; tensor 4 is
// fetched from the 30th use on.
void begin_far_plan(Planned& planned) {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < 60; ++i) order.push_back(i % 2);
  order[40] = 5;
  for (const std::uint32_t i : {41U, 43U, 45U}) order[i] = 2;
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
