// SPDX-License-Identifier: Apache-2.0
// Shows that what a client says ahead of time wins over what a plan guesses: what it asks for comes first, and stays
// until it is used; what it gives up goes, although something was bringing it.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "unit/engine/planned.h"

namespace terrace::engine {
namespace {

// What comes over the block link goes into the device, one after the other.
Options one_at_a_time() {
  Options options = planned_options();
  options.tiers.erase(options.tiers.begin() + 1);
  options.transfers_in_flight_max = 1;
  return options;
}

foresight::PlannedFetch fetch(const Planned& planned, std::uint32_t tensor, std::int64_t due_ns) {
  return {.from = 0, .slot = planned.tensors[tensor].slot, .place = kDevice, .due_ns = due_ns};
}

// The engine numbers tensors from 1.
std::uint64_t number(std::uint32_t tensor) { return tensor + 1; }

// A plan brings tensors 0 and 1, one at a time: the first is on its way.
void begin_first_of_two(Planned& planned) {
  planned.mark_step();
  foresight::Plan plan = planned.plan_of({5, 0, 1});
  plan.fetches = {fetch(planned, 0, 1 * kApartNs), fetch(planned, 1, 2 * kApartNs)};
  planned.plan(std::move(plan));
  ASSERT_EQ(planned.harness.transfers.size(), 1u);
}

TEST(Hints, GoBeforeWhatAPlanBrings) {
  Planned planned(one_at_a_time());
  Harness& harness = planned.harness;
  begin_first_of_two(planned);
  harness.send(planned.client.id, Prefetch{kDevice, {planned.tensors[2]}});
  harness.complete_transfer(0);
  ASSERT_EQ(harness.transfers.size(), 1u);
  EXPECT_EQ(harness.transfers[0].tensor, number(2)) << "the plan knew when it wants its own, and the client asked";
  harness.settle();
}

TEST(Hints, WhatOneBroughtDoesNotGoForAPlan) {
  Planned planned;
  planned.mark_step();
  for (const std::uint32_t tensor : {0U, 1U, 2U}) planned.read(tensor);
  ASSERT_TRUE(planned.harness.ask(planned.client.id, Prefetch{kDevice, {planned.tensors[3]}}));
  ASSERT_TRUE(planned.is_in_device(3));
  planned.mark_step();
  foresight::Plan plan = planned.plan_of({0, 1, 2, 4});
  plan.fetches = {fetch(planned, 4, 3 * kApartNs)};
  planned.plan(plan);
  EXPECT_TRUE(planned.is_in_device(3)) << "though the plan does not know it";
  EXPECT_FALSE(planned.is_in_device(4));
  planned.read(3);
  planned.mark_step();
  planned.plan(plan);
  EXPECT_TRUE(planned.is_in_device(4)) << "what was asked for has been used by now";
}

TEST(Hints, WhatIsThereAlreadyIsKeptToo) {
  Planned planned;
  planned.mark_step();
  for (const std::uint32_t tensor : {0U, 1U, 2U, 3U}) planned.read(tensor);
  ASSERT_TRUE(planned.harness.ask(planned.client.id, Prefetch{kDevice, {planned.tensors[3]}}));
  planned.mark_step();
  foresight::Plan plan = planned.plan_of({0, 1, 2, 4});
  plan.fetches = {fetch(planned, 4, 3 * kApartNs)};
  planned.plan(std::move(plan));
  EXPECT_TRUE(planned.is_in_device(3));
}

// Tensor 3 was asked for; with `order`, before a plan comes that uses these next.
void goes_for_a_demand_after_what_is_used_later(const std::optional<std::vector<std::uint32_t>>& order = {}) {
  Planned planned;
  planned.mark_step();
  for (const std::uint32_t tensor : {0U, 1U, 2U}) planned.read(tensor);
  planned.mark_step();
  planned.plan(planned.plan_of({0, 1, 2}));
  ASSERT_TRUE(planned.harness.ask(planned.client.id, Prefetch{kDevice, {planned.tensors[3]}}));
  ASSERT_TRUE(planned.is_in_device(3));
  if (order) {
    planned.mark_step();
    planned.plan(planned.plan_of(*order));
  }
  planned.read(4);
  EXPECT_TRUE(planned.is_in_device(3)) << "it is to be used now";
  EXPECT_FALSE(planned.is_in_device(2)) << "and this in two seconds";
}

TEST(Hints, WhatOneBroughtGoesForADemandAfterWhatIsUsedLater) { goes_for_a_demand_after_what_is_used_later(); }

TEST(Hints, APlanThatComesDoesNotSayWhenTheyAreUsed) { goes_for_a_demand_after_what_is_used_later({{0, 1, 2, 3}}); }

TEST(Hints, APlanThatComesAndDoesNotKnowThemDoesNotForgetThem) {
  goes_for_a_demand_after_what_is_used_later({{0, 1, 2}});
}

TEST(Hints, AnEvictTakesBackWhatWaitsToBeBrought) {
  Planned planned(one_at_a_time());
  Harness& harness = planned.harness;
  harness.send(planned.client.id, Prefetch{kDevice, {planned.tensors[0], planned.tensors[1]}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  harness.send(planned.client.id, Evict{{planned.tensors[1]}});
  harness.complete_transfer(0);
  EXPECT_TRUE(harness.transfers.empty()) << "it was never begun";
  EXPECT_TRUE(planned.is_in_device(0));
  EXPECT_EQ(harness.read(planned.client, planned.tensors[1]), 1u);
}

TEST(Hints, AnEvictTakesWhatIsOnItsWayOnceItIsThere) {
  Planned planned;
  Harness& harness = planned.harness;
  const auto used_bytes = [&] { return harness.status().tiers[0].used_bytes + harness.status().tiers[1].used_bytes; };
  const std::uint64_t before = used_bytes();
  harness.send(planned.client.id, Prefetch{kDevice, {planned.tensors[0]}});
  harness.complete_orders();
  ASSERT_EQ(harness.transfers.size(), 1u);
  harness.send(planned.client.id, Evict{{planned.tensors[0]}});
  harness.settle();
  EXPECT_EQ(used_bytes(), before) << "neither in the device nor in memory on the way there";
  EXPECT_EQ(harness.status().prefetches.wasted, 1u);
  EXPECT_EQ(harness.read(planned.client, planned.tensors[0]), 0u);
}

TEST(Hints, AnEvictTakesNothingFromWhoeverWaitsForIt) {
  Planned planned(one_at_a_time());
  Harness& harness = planned.harness;
  harness.send(planned.client.id, Prefetch{kDevice, {planned.tensors[0]}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  harness.send(planned.client.id, Evict{{planned.tensors[0]}});
  const RequestId demand = harness.send(planned.client.id, Acquire{kDevice, shm::Mode::kRead, {planned.tensors[0]}});
  harness.complete_transfer(0);
  EXPECT_TRUE(harness.answered(demand)) << "by the transfer that was under way";
  harness.release(planned.client, planned.tensors[0], shm::Mode::kRead);
}

TEST(Hints, APrefetchAfterAnEvictKeepsWhatIsOnItsWay) {
  Planned planned(one_at_a_time());
  Harness& harness = planned.harness;
  harness.send(planned.client.id, Prefetch{kDevice, {planned.tensors[0]}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  harness.send(planned.client.id, Evict{{planned.tensors[0]}});
  harness.send(planned.client.id, Prefetch{kDevice, {planned.tensors[0]}});
  EXPECT_TRUE(planned.is_in_device(0)) << "the client's latest word counts";
}

TEST(Hints, WhatAPlanWasToBringStaysToBeBroughtForAClientThatAsks) {
  Planned planned(one_at_a_time());
  begin_first_of_two(planned);
  planned.harness.send(planned.client.id, Prefetch{kDevice, {planned.tensors[1]}});
  planned.plan({});
  EXPECT_TRUE(planned.is_in_device(1)) << "though there is no plan any more that wants it";
}

// What the engine passes on to the learner of a declaration.
std::vector<foresight::Observation> declared(Planned& planned, DeclareStep step) {
  Engine& engine = *planned.harness.engine;
  engine.submit(planned.harness.now,
                {.id = RequestId{1'000'000}, .session = planned.client.id, .body = std::move(step)});
  const Output output = engine.take_output();
  EXPECT_EQ(output.replies.size(), 1u);
  EXPECT_TRUE(output.replies.front().result) << output.replies.front().result.error().message;
  return output.observations;
}

TEST(Hints, AStepIsDeclaredSetBySet) {
  Planned planned;
  const auto set = [&](std::vector<Handle> tensors) {
    return DeclareStep::Set{kDevice, shm::Mode::kWrite, std::chrono::milliseconds(5), std::move(tensors)};
  };
  const auto& tensors = planned.tensors;
  const auto first = declared(planned, {.kind = 1, .position = 0, .sets = {set({tensors[0], tensors[1]})}});
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].step_kind, 1u);
  EXPECT_TRUE(first[0].first);
  EXPECT_FALSE(first[1].first);
  const DeclareStep second{.kind = 1, .position = 1, .sets = {set({tensors[2]}), set({tensors[3]})}};
  const auto rest = declared(planned, second);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[1].at - Time{}, std::chrono::milliseconds(10));
  EXPECT_FALSE(rest[0].first);
  EXPECT_TRUE(declared(planned, second).empty()) << "asked again after a restart, say";
}

TEST(Hints, AStepDeclaredOutOfOrderIsRefused) {
  Planned planned;
  Harness& harness = planned.harness;
  const DeclareStep::Set set{kDevice, shm::Mode::kRead, {}, {planned.tensors[0]}};
  const auto refused = harness.ask(planned.client.id, DeclareStep{.kind = 0, .position = 1, .sets = {set}});
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  const auto kind = harness.ask(planned.client.id, DeclareStep{.kind = 3, .position = 0, .sets = {set}});
  EXPECT_EQ(kind.error().code, ErrorCode::kInvalidArgument);
  const DeclareStep::Set nowhere{kDevice + 7, shm::Mode::kRead, {}, {planned.tensors[0]}};
  const auto place = harness.ask(planned.client.id, DeclareStep{.kind = 0, .position = 0, .sets = {nowhere}});
  EXPECT_EQ(place.error().code, ErrorCode::kNotFound);
}

TEST(Hints, AStepOfNothingOrOfDaysIsRefused) {
  Planned planned;
  const auto refusal = [&](std::vector<DeclareStep::Set> sets) {
    return planned.harness.ask(planned.client.id, DeclareStep{.kind = 0, .position = 0, .sets = std::move(sets)})
        .error()
        .code;
  };
  const DeclareStep::Set long_one{kDevice, shm::Mode::kRead, std::chrono::hours(13), {planned.tensors[0]}};
  EXPECT_EQ(refusal({}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({{kDevice, shm::Mode::kRead, {}, {}}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal({long_one, long_one}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(declared(planned, {.kind = 0, .position = 0, .sets = {long_one}}).size(), 1u);
  const auto more = planned.harness.ask(planned.client.id, DeclareStep{.kind = 0, .position = 1, .sets = {long_one}});
  EXPECT_EQ(more.error().code, ErrorCode::kInvalidArgument) << "what was declared before counts";
}

TEST(Hints, KindsAreDeclaredSideBySide) {
  Planned planned;
  const DeclareStep::Set set{kDevice, shm::Mode::kRead, {}, {planned.tensors[0]}};
  for (const std::uint32_t position : {0u, 1u})
    for (const std::uint32_t kind : {0u, 2u}) {
      const auto seen = declared(planned, {.kind = kind, .position = position, .sets = {set}});
      ASSERT_EQ(seen.size(), 1u);
      EXPECT_EQ(seen.front().first, position == 0);
      EXPECT_EQ(seen.front().at - Time{}, Duration(position * foresight::kOneSetNs)) << "a set of its own";
    }
}

TEST(Hints, APlansFetchIsTakenBackUntilItBegins) {
  Planned planned(one_at_a_time());
  Harness& harness = planned.harness;
  begin_first_of_two(planned);
  planned.plan({});
  harness.complete_transfer(0);
  EXPECT_TRUE(harness.transfers.empty()) << "there is no plan any more that wants it";
}

}  // namespace
}  // namespace terrace::engine
