// SPDX-License-Identifier: Apache-2.0
// Shows what each request is answered with: the rules of leases, sets, names, quotas and deadlines, and a clear error
// for what breaks them.
#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

ErrorCode code(const Result<ReplyBody>& result) { return result ? ErrorCode{} : result.error().code; }

class Requests : public ::testing::Test {
 protected:
  Result<ReplyBody> create(std::string name, std::uint64_t bytes) {
    return harness.ask(client->id, CreateTensors{{spec_of(std::move(name), bytes)}});
  }
  Result<ReplyBody> acquire(std::vector<Handle> set, shm::Mode mode = shm::Mode::kRead, std::uint32_t place = kDevice) {
    return harness.acquire(*client, place, mode, std::move(set), harness.now);
  }

  Harness harness{three_tiers()};
  Harness::Client* client = harness.open();
};

TEST_F(Requests, CreateRefusesWhatIsWrong) {
  ASSERT_TRUE(create("a", 1));
  EXPECT_EQ(code(create("a", 1)), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code(create("", 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(create(std::string(176, 'x'), 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(create("zero", 0)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(create("big", 64 * kMiB + 1)), ErrorCode::kResourceExhausted);
  EXPECT_EQ(code(create("overflow", UINT64_MAX)), ErrorCode::kResourceExhausted);
  CreateTensors many;
  for (int i = 0; i < 9; ++i) many.tensors.push_back(spec_of("m" + std::to_string(i), 8 * kMiB));
  const auto refused = harness.ask(client->id, many);
  EXPECT_EQ(code(refused), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("67108864"));
  EXPECT_EQ(harness.status().sessions[0].tensors, 1u) << "all or none";
  EXPECT_TRUE(create("m1", 8 * kMiB));
  TensorSpec odd = spec_of("odd", 4);
  odd.dtype = static_cast<DType>(99);
  EXPECT_EQ(code(harness.ask(client->id, CreateTensors{{odd}})), ErrorCode::kInvalidArgument);
}

TEST_F(Requests, TheSlotsOfTheTableAreABound) {
  const auto& small = *harness.open({}, 2);
  harness.create(small, "a", 1);
  const Handle b = harness.create(small, "b", 1);
  EXPECT_EQ(code(harness.ask(small.id, CreateTensors{{spec_of("c", 1)}})), ErrorCode::kResourceExhausted);
  ASSERT_TRUE(harness.ask(small.id, DeleteTensors{{b}}));
  const Handle c = harness.create(small, "c", 1);
  EXPECT_EQ(c.slot, b.slot);
  EXPECT_NE(c.incarnation, b.incarnation);
  EXPECT_EQ(code(harness.acquire(small, kDevice, shm::Mode::kRead, {b})), ErrorCode::kAborted) << "an earlier life";
}

TEST_F(Requests, QuotaCountsTheTenantsHomes) {
  Options options = three_tiers();
  options.quotas = {{.tenant_socket = 7, .home_bytes_max = 2 * kMiB}};
  Harness limited(options);
  OpenSession open;
  open.tenant = {.socket = 7, .uid = 1};
  const auto& one = *limited.open(open);
  const auto& two = *limited.open(open);
  limited.create(one, "a", kMiB);
  const Handle b = limited.create(two, "b", kMiB);
  const auto refused = limited.ask(one.id, CreateTensors{{spec_of("c", 1)}});
  EXPECT_EQ(code(refused), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("quota"));
  ASSERT_TRUE(limited.ask(two.id, DeleteTensors{{b}}));
  EXPECT_TRUE(limited.ask(one.id, CreateTensors{{spec_of("c", 1)}}));
}

TEST_F(Requests, UnknownPlacesTensorsAndSessions) {
  const Handle a = harness.create(*client, "a", 1);
  const auto nowhere = acquire({a}, shm::Mode::kRead, 5);
  EXPECT_EQ(code(nowhere), ErrorCode::kNotFound);
  EXPECT_THAT(nowhere.error().message, HasSubstr("this daemon has device:0, host"));
  EXPECT_EQ(code(acquire({a}, shm::Mode::kRead, shm::kPlaceBlock)), ErrorCode::kNotFound);
  EXPECT_EQ(code(acquire({{Slot{77}, 1}})), ErrorCode::kNotFound);
  EXPECT_EQ(code(acquire({a, a}, shm::Mode::kOverwrite)), ErrorCode::kInvalidArgument) << "twice in a set";
  EXPECT_EQ(code(harness.ask(SessionId{99}, MarkStep{})), ErrorCode::kNotFound);
  EXPECT_EQ(code(harness.ask(client->id, MarkStep{3})), ErrorCode::kInvalidArgument);
}

TEST_F(Requests, ReadsNeedContent) {
  const Handle a = harness.create(*client, "a", kMiB);
  EXPECT_EQ(code(acquire({a})), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code(harness.ask(client->id, Move{kHost, {a}})), ErrorCode::kFailedPrecondition);
  harness.write(*client, a, 1);
  EXPECT_EQ(harness.read(*client, a), 1u);
  ASSERT_TRUE(harness.ask(client->id, DontNeed{{a}}));
  EXPECT_EQ(code(acquire({a})), ErrorCode::kFailedPrecondition);
  harness.write(*client, a, 2);
  EXPECT_EQ(harness.read(*client, a), 2u);
}

TEST_F(Requests, AnOverwriteThatWasGivenUpLeavesATornTensor) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(acquire({a}, shm::Mode::kOverwrite));
  ASSERT_TRUE(acquire({a}, shm::Mode::kOverwrite));
  ASSERT_TRUE(harness.ask(client->id, Release{shm::Mode::kOverwrite, {a}, true}));
  EXPECT_TRUE(client->table.load(a.slot).leased()) << "the other writer's lease stands";
  EXPECT_THAT(acquire({a}).error().message, HasSubstr("torn")) << "the first may have written over the second";
  ASSERT_TRUE(harness.ask(client->id, Release{shm::Mode::kOverwrite, {a}, true}));
  const auto refused = acquire({a});
  EXPECT_EQ(code(refused), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("'a' is torn"));
  EXPECT_THAT(acquire({a}, shm::Mode::kWrite).error().message, HasSubstr("torn"));
  harness.write(*client, a, 2);
  EXPECT_EQ(harness.read(*client, a), 2u);
}

TEST_F(Requests, ATrainerGivesAnOverwriteUpInTheWord) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(acquire({a}, shm::Mode::kOverwrite));
  ASSERT_TRUE(acquire({a}, shm::Mode::kRead));
  harness.abandon(*client, a);
  EXPECT_THAT(acquire({a}).error().message, HasSubstr("'a' is torn")) << "though a reader's lease keeps it there";
  EXPECT_THAT(acquire({a}, shm::Mode::kWrite).error().message, HasSubstr("torn"));
  harness.release(*client, a, shm::Mode::kRead);
  EXPECT_EQ(code(acquire({a})), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code(harness.ask(client->id, Move{shm::kPlaceBlock, {a}})), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code(harness.acquire(*client, kHost, shm::Mode::kRead, {a})), ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(acquire({a}, shm::Mode::kOverwrite));
  harness.fill(*client, a, 2);
  harness.release(*client, a, shm::Mode::kOverwrite);
  EXPECT_EQ(harness.read(*client, a), 2u);
}

TEST_F(Requests, ATornTensorStaysTornWhereverItGoes) {
  const Handle a = harness.create(*client, "a", kMiB);
  ASSERT_TRUE(harness.acquire(*client, kDevice, shm::Mode::kOverwrite, {a}));
  harness.abandon(*client, a);
  ASSERT_TRUE(harness.ask(client->id, Evict{{a}}));
  EXPECT_THAT(acquire({a}).error().message, HasSubstr("torn"));
  ASSERT_TRUE(harness.ask(client->id, Prefetch{kHost, {a}}));
  harness.settle();
  EXPECT_THAT(harness.acquire(*client, kHost, shm::Mode::kRead, {a}).error().message, HasSubstr("torn"));
  ASSERT_TRUE(harness.ask(client->id, Pin{kHost, {a}}));
  EXPECT_THAT(harness.acquire(*client, kHost, shm::Mode::kRead, {a}).error().message, HasSubstr("torn"));
  ASSERT_TRUE(harness.ask(client->id, Unpin{{a}}));
  ASSERT_TRUE(harness.ask(client->id, DontNeed{{a}}));
  EXPECT_THAT(acquire({a}).error().message, HasSubstr("never written")) << "given up by its owner, and not torn";
}

TEST_F(Requests, DontNeedIsRefusedWhileSomebodyDoes) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(acquire({a}));
  const auto leased = harness.ask(client->id, DontNeed{{a}});
  ASSERT_FALSE(leased);
  EXPECT_EQ(leased.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(leased.error().message, HasSubstr("'a' is leased"));
  harness.release(*client, a, shm::Mode::kRead);
  ASSERT_TRUE(harness.ask(client->id, Move{shm::kPlaceBlock, {a}}));
  const RequestId reads = harness.send(client->id, Acquire{kDevice, shm::Mode::kRead, {a}});
  harness.complete_orders();
  ASSERT_EQ(harness.transfers.size(), 1u);
  const auto coming = harness.reply(harness.send(client->id, DontNeed{{a}}));
  ASSERT_FALSE(coming);
  EXPECT_EQ(coming.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(coming.error().message, HasSubstr("'a' is being brought in for another request"));
  harness.settle();
  ASSERT_TRUE(harness.reply(reads));
  EXPECT_EQ(harness.look(*client, a), 1u);
  harness.release(*client, a, shm::Mode::kRead);
}

TEST_F(Requests, DontNeedWhileAPrefetchBringsIt) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(harness.ask(client->id, Move{shm::kPlaceBlock, {a}}));
  harness.send(client->id, Prefetch{kDevice, {a}});
  harness.complete_orders();
  ASSERT_EQ(harness.transfers.size(), 1u);
  const RequestId forgets = harness.send(client->id, DontNeed{{a}});
  EXPECT_TRUE(harness.reply(forgets));
  harness.settle();
  EXPECT_EQ(code(acquire({a})), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(harness.status().prefetches.wasted, 1u);
  harness.write(*client, a, 2);
  EXPECT_EQ(harness.read(*client, a), 2u);
}

TEST_F(Requests, OnePlaceAtATime) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(acquire({a}));
  const auto elsewhere = acquire({a}, shm::Mode::kRead, kHost);
  EXPECT_EQ(code(elsewhere), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(elsewhere.error().message, HasSubstr("device:0"));
  EXPECT_TRUE(acquire({a})) << "a second reader at the same place";
  harness.release(*client, a, shm::Mode::kRead);
  harness.release(*client, a, shm::Mode::kRead);
  EXPECT_EQ(harness.read(*client, a, kHost), 1u);
}

TEST_F(Requests, ReleasesThroughTheEngine) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(acquire({a}));
  EXPECT_EQ(code(harness.ask(client->id, Release{shm::Mode::kWrite, {a}})), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(harness.ask(client->id, Release{shm::Mode::kRead, {a}}));
  EXPECT_EQ(code(harness.ask(client->id, Release{shm::Mode::kRead, {a}})), ErrorCode::kFailedPrecondition) << "twice";
}

TEST_F(Requests, ASetIsAllOrNothing) {
  const Handle a = harness.create(*client, "a", kMiB);
  const Handle b = harness.create(*client, "b", kMiB);
  harness.write(*client, a, 1);
  EXPECT_EQ(code(acquire({a, b})), ErrorCode::kFailedPrecondition) << "b was never written";
  EXPECT_FALSE(client->table.load(a.slot).leased());
  harness.write(*client, b, 2);
  const auto both = acquire({a, b});
  ASSERT_TRUE(both);
  EXPECT_EQ(client->table.load(a.slot).readers, 1u) << "granted with the counts already set";
  EXPECT_EQ(client->table.load(b.slot).readers, 1u);
  EXPECT_EQ(std::get<Located>(*both).tensors[1].place, kDevice);
}

TEST_F(Requests, ASetLargerThanThePlaceFailsAtOnceWithNumbers) {
  const Handle a = harness.create(*client, "a", 3 * kMiB);
  const Handle b = harness.create(*client, "b", 3 * kMiB);
  const auto refused = harness.acquire(*client, kDevice, shm::Mode::kOverwrite, {a, b});
  EXPECT_EQ(code(refused), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("6291456"));
  EXPECT_THAT(refused.error().message, HasSubstr("4194304"));
  EXPECT_THAT(refused.error().message, HasSubstr("never"));
  harness.write(*client, a, 1);
  EXPECT_THAT(harness.acquire(*client, kDevice, shm::Mode::kOverwrite, {a, b}).error().message, HasSubstr("never"))
      << "though one is there already";
}

TEST_F(Requests, ATensorThatFitsNoPlaceIsRefusedWhenItIsCreated) {
  const auto create_both = [&](std::uint64_t bytes) {
    return harness.ask(client->id, CreateTensors{{spec_of("fits", kMiB), spec_of("tall", bytes)}});
  };
  const auto refused = create_both(8 * kMiB + 1);  // the block tier would have the room
  EXPECT_EQ(code(refused), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("'tall' of 8388609 bytes"));
  EXPECT_THAT(refused.error().message, HasSubstr("'host', has 8388608 bytes"));
  EXPECT_TRUE(create_both(8 * kMiB)) << "the larger place decides, and all or none: nothing was created before";
}

TEST_F(Requests, WaitsForLeasesThenNamesTheHolders) {
  const Handle a = harness.create(*client, "held", 3 * kMiB);
  const Handle b = harness.create(*client, "b", 3 * kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(acquire({a}));
  const RequestId waits =
      harness.send(client->id, Acquire{kDevice, shm::Mode::kOverwrite, {b}}, harness.now + Duration(10));
  harness.settle();
  EXPECT_FALSE(harness.answered(waits));
  EXPECT_TRUE(client->table.load(a.slot).wanted) << "the fast path is closed while somebody waits";
  harness.advance(harness.now + Duration(10));
  const auto late = harness.reply(waits);
  EXPECT_EQ(code(late), ErrorCode::kResourceExhausted);
  EXPECT_THAT(late.error().message, HasSubstr("'held' (1 readers"));
  EXPECT_FALSE(client->table.load(a.slot).wanted);
  const RequestId again = harness.send(client->id, Acquire{kDevice, shm::Mode::kOverwrite, {b}});
  harness.release(*client, a, shm::Mode::kRead);
  harness.settle();
  EXPECT_TRUE(harness.reply(again)) << "the release rang, and the wait ended";
}

TEST(Creates, WaitForLeasesThenNameTheHolders) {
  Options options;
  options.tiers = {tier_of("memory", tier::Kind::kMemory, 4 * kMiB)};
  Harness harness(options);
  const auto& client = *harness.open();
  std::vector<Handle> tensors;
  for (const char* name : {"a", "b", "c", "d"}) tensors.push_back(harness.create(client, name, kMiB));
  for (const Handle tensor : tensors) harness.write(client, tensor, 1, kHost);
  ASSERT_TRUE(harness.acquire(client, kHost, shm::Mode::kRead, {tensors[1]}));
  ASSERT_TRUE(harness.ask(client.id, DeleteTensors{{tensors[0], tensors[2]}}));
  const CreateTensors create{{spec_of("e", 2 * kMiB)}};
  const RequestId waits = harness.send(client.id, create, harness.now + Duration(10));
  harness.settle();
  EXPECT_FALSE(harness.answered(waits)) << "b lies between the free bytes, and is leased";
  const RequestId later = harness.send(client.id, CreateTensors{{spec_of("f", kMiB)}}, harness.now + Duration(9));
  harness.settle();
  EXPECT_FALSE(harness.answered(later)) << "it would take what the first one waits for";
  harness.advance(harness.now + Duration(10));
  const auto late = harness.reply(waits);
  EXPECT_EQ(code(late), ErrorCode::kResourceExhausted);
  EXPECT_THAT(late.error().message, HasSubstr("'b' (1 readers"));
  EXPECT_THAT(harness.reply(later).error().message, HasSubstr("an earlier request still waited for room in 'memory'"));
  const RequestId again = harness.send(client.id, create);
  harness.release(client, tensors[1], shm::Mode::kRead);
  harness.settle();
  EXPECT_TRUE(harness.reply(again));
}

TEST_F(Requests, DeadlinesPassWhileTransfersAreUnderWay) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(harness.ask(client->id, Move{shm::kPlaceBlock, {a}}));
  const RequestId slow = harness.send(client->id, Acquire{kDevice, shm::Mode::kRead, {a}}, harness.now + Duration(5));
  harness.complete_orders();
  ASSERT_FALSE(harness.transfers.empty());
  EXPECT_EQ(harness.engine->next_deadline(), harness.now + Duration(5));
  harness.advance(harness.now + Duration(6));
  EXPECT_EQ(code(harness.reply(slow)), ErrorCode::kDeadlineExceeded);
  harness.settle();
  EXPECT_EQ(code(acquire({a}, shm::Mode::kRead, kHost)), ErrorCode{}) << "what was on its way arrived";
}

TEST_F(Requests, NoTimeMeansAtOnce) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  EXPECT_TRUE(acquire({a})) << "it is there";
  harness.release(*client, a, shm::Mode::kRead);
  ASSERT_TRUE(harness.ask(client->id, Move{shm::kPlaceBlock, {a}}));
  const RequestId now = harness.send(client->id, Acquire{kDevice, shm::Mode::kRead, {a}}, harness.now);
  EXPECT_TRUE(harness.answered(now));
  EXPECT_EQ(code(harness.reply(now)), ErrorCode::kDeadlineExceeded);
}

TEST_F(Requests, ACancelledRequestIsAnsweredOnce) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(harness.ask(client->id, Move{shm::kPlaceBlock, {a}}));
  const RequestId slow = harness.send(client->id, Acquire{kDevice, shm::Mode::kRead, {a}});
  harness.engine->cancel(harness.now, slow);
  harness.drain();
  EXPECT_EQ(code(harness.reply(slow)), ErrorCode::kCancelled);
  harness.engine->cancel(harness.now, slow);
  harness.drain();
  harness.settle();
  EXPECT_EQ(harness.read(*client, a), 1u);
}

TEST_F(Requests, DeletingALeasedTensorFreesTheNameAtOnceAndTheBytesAtTheLastRelease) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  ASSERT_TRUE(acquire({a}));
  ASSERT_TRUE(harness.ask(client->id, DeleteTensors{{a}}));
  EXPECT_EQ(code(acquire({a})), ErrorCode::kAborted);
  EXPECT_TRUE(create("a", 1)) << "the name is free";
  EXPECT_EQ(harness.look(*client, a), 1u) << "the lease still holds the bytes";
  const std::uint64_t used = harness.status().tiers[0].used_bytes;
  harness.release(*client, a, shm::Mode::kRead);
  EXPECT_EQ(harness.status().tiers[0].used_bytes, used - kMiB);
  EXPECT_EQ(client->table.load(a.slot).state, shm::State::kFree);
}

TEST_F(Requests, PinnedTensorsStay) {
  const Handle a = harness.create(*client, "a", 2 * kMiB);
  const Handle b = harness.create(*client, "b", 2 * kMiB);
  const Handle c = harness.create(*client, "c", 2 * kMiB);
  ASSERT_TRUE(harness.ask(client->id, Pin{kDevice, {a}})) << "before it is written, too";
  harness.write(*client, a, 1);
  const std::uint64_t offset = client->slots[index(a.slot)].offset;
  for (int i = 0; i < 3; ++i) {
    harness.write(*client, b, 2);
    harness.write(*client, c, 3);
  }
  EXPECT_EQ(client->table.load(a.slot).state, shm::State::kResident);
  EXPECT_EQ(client->slots[index(a.slot)].offset, offset);
  EXPECT_EQ(code(harness.ask(client->id, Move{kHost, {a}})), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code(harness.acquire(*client, kDevice, shm::Mode::kOverwrite, {b, c})), ErrorCode::kResourceExhausted)
      << "pins count as leases that never end";
  ASSERT_TRUE(harness.ask(client->id, Unpin{{a}}));
  EXPECT_EQ(code(harness.ask(client->id, Unpin{{a}})), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(harness.acquire(*client, kDevice, shm::Mode::kOverwrite, {b, c}));
}

TEST_F(Requests, ALaterAdmissionThatFitsPasses) {
  const Handle held = harness.create(*client, "held", 2 * kMiB);
  const Handle big = harness.create(*client, "big", 4 * kMiB);
  const Handle small = harness.create(*client, "small", kMiB);
  harness.write(*client, held, 1);
  ASSERT_TRUE(acquire({held}));
  const RequestId waits = harness.send(client->id, Acquire{kDevice, shm::Mode::kOverwrite, {big}});
  harness.settle();
  EXPECT_FALSE(harness.answered(waits));
  EXPECT_TRUE(harness.acquire(*client, kDevice, shm::Mode::kOverwrite, {small}));
  harness.release(*client, small, shm::Mode::kOverwrite);
  harness.release(*client, held, shm::Mode::kRead);
  harness.settle();
  EXPECT_TRUE(harness.reply(waits));
}

TEST_F(Requests, TheNumberOfWaitersIsBounded) {
  Options options = three_tiers();
  options.requests_waiting_max = 1;
  Harness bounded(options);
  const auto& one = *bounded.open();
  const Handle a = bounded.create(one, "a", kMiB);
  bounded.write(one, a, 1);
  ASSERT_TRUE(bounded.ask(one.id, Move{shm::kPlaceBlock, {a}}));
  const RequestId first = bounded.send(one.id, Acquire{kDevice, shm::Mode::kRead, {a}});
  const RequestId second = bounded.send(one.id, Acquire{kDevice, shm::Mode::kRead, {a}});
  EXPECT_EQ(code(bounded.reply(second)), ErrorCode::kResourceExhausted) << "at once";
  bounded.settle();
  EXPECT_TRUE(bounded.reply(first));
}

TEST_F(Requests, PrefetchesAreCounted) {
  std::vector<Handle> tensors;
  for (int i = 0; i < 3; ++i) tensors.push_back(harness.create(*client, std::to_string(i), kMiB));
  for (const Handle tensor : tensors) harness.write(*client, tensor, 4);
  ASSERT_TRUE(harness.ask(client->id, Move{shm::kPlaceBlock, tensors}));
  const RequestId hint = harness.send(client->id, Prefetch{kDevice, {tensors[0], tensors[1]}});
  EXPECT_TRUE(harness.reply(hint)) << "answered at once";
  harness.settle();
  EXPECT_EQ(harness.read(*client, tensors[0]), 4u);
  EXPECT_EQ(harness.status().prefetches.used, 1u);
  ASSERT_TRUE(harness.ask(client->id, Evict{{tensors[1]}}));
  EXPECT_EQ(harness.status().prefetches.wasted, 1u);
  harness.send(client->id, Prefetch{kDevice, {tensors[2]}});
  const RequestId late = harness.send(client->id, Acquire{kDevice, shm::Mode::kRead, {tensors[2]}});
  harness.settle();
  EXPECT_TRUE(harness.reply(late));
  EXPECT_EQ(harness.status().prefetches.late, 1u);
}

TEST_F(Requests, PrefetchesOfWhatStaysWhereItIsAreCountedAsRefused) {
  const Handle leased = harness.create(*client, "leased", kMiB);
  const Handle pinned = harness.create(*client, "pinned", kMiB);
  for (const Handle tensor : {leased, pinned}) harness.write(*client, tensor, 4, kHost);
  ASSERT_TRUE(acquire({leased}, shm::Mode::kRead, kHost));
  ASSERT_TRUE(harness.ask(client->id, Pin{kHost, {pinned}}));
  EXPECT_TRUE(harness.ask(client->id, Prefetch{kDevice, {leased, pinned}}));
  EXPECT_EQ(harness.status().prefetches.refused, 2u);
  for (const Handle tensor : {leased, pinned}) EXPECT_EQ(client->slots[index(tensor.slot)].place, kHost);
  harness.release(*client, leased, shm::Mode::kRead);
}

TEST_F(Requests, GarbageInTheAccessLogIsIgnored) {
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  const std::vector<Access> accesses{{Slot{UINT32_MAX}, shm::Mode::kRead}, {a.slot, static_cast<shm::Mode>(9)}};
  const std::uint64_t hits = harness.status().places[0].hits;
  harness.engine->accessed(harness.now, client->id, accesses, 5);
  harness.engine->accessed(harness.now, SessionId{99}, accesses, 5);
  EXPECT_EQ(harness.status().places[0].hits, hits + 5);
}

TEST_F(Requests, AScribbledWordHarmsItsOwnSessionAlone) {
  const auto& other = *harness.open();
  const Handle theirs = harness.create(other, "theirs", kMiB);
  harness.write(other, theirs, 6);
  const Handle a = harness.create(*client, "a", kMiB);
  harness.write(*client, a, 1);
  for (const std::uint64_t garbage : {std::uint64_t{0}, ~std::uint64_t{0} & ~std::uint64_t{7}, std::uint64_t{5}}) {
    client->slots[index(a.slot)].word.store(garbage);
    harness.engine->submit(harness.now, {RequestId{9000}, client->id, kNever, Evict{{a}}});
    client->slots[index(a.slot)].word.store(shm::Word{.state = shm::State::kFree}.packed());
    const Output out = harness.engine->take_output();
    for (const mover::Transfer& transfer : out.transfers)
      harness.engine->transfer_done(harness.now, {transfer.id, {}, {}});
    harness.engine->take_output();
  }
  harness.engine->session_died(harness.now, client->id);
  harness.drain();
  EXPECT_EQ(harness.read(other, theirs), 6u);
}

TEST_F(Requests, ListsWhatThereIs) {
  const Handle a = harness.create(*client, "layer.0.weight", kMiB);
  harness.create(*client, "layer.1.weight", kMiB);
  harness.create(*client, "other", kMiB);
  harness.write(*client, a, 1);
  const auto listed = harness.ask(client->id, ListTensors{"layer."});
  ASSERT_TRUE(listed);
  const auto& tensors = std::get<TensorList>(*listed).tensors;
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].placement.place, kDevice);
  EXPECT_TRUE(tensors[0].dirty);
  EXPECT_EQ(tensors[1].placement.place, shm::kPlaceNowhere);
}

TEST_F(Requests, DrainingOpensNoMoreSessions) {
  ASSERT_TRUE(harness.ask(SessionId{}, Drain{}));
  EXPECT_EQ(harness.open(), nullptr);
  EXPECT_EQ(harness.refusal.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(create("still served", 1));
  EXPECT_TRUE(harness.status().draining);
}

}  // namespace
}  // namespace terrace::engine
