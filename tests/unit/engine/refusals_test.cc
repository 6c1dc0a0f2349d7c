// SPDX-License-Identifier: Apache-2.0
// Shows what is answered to requests that name what there is not: sessions that are not open, tensors of another life,
// sets beyond their bound, specs that say two things; and that nothing is changed by them.
#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Refusals : public ::testing::Test {
 protected:
  Error error(SessionId session, Body body, Time deadline = kNever) {
    const auto result = harness_.ask(session, std::move(body), deadline);
    return result ? Error{ErrorCode{}, "not refused", 0} : result.error();
  }
  Error error(Body body) { return error(client_->id, std::move(body)); }
  void refuses(Body body, ErrorCode code, const char* what) {
    const Error found = error(std::move(body));
    EXPECT_EQ(found.code, code) << found.message;
    EXPECT_THAT(found.message, HasSubstr(what));
  }
  // Every request of a trainer's that names tensors.
  static std::vector<Body> naming(const std::vector<Handle>& set) {
    return {DeleteTensors{set}, Acquire{kDevice, shm::Mode::kRead, set},
            Move{kHost, set},   Prefetch{kDevice, set},
            Evict{set},         DontNeed{set},
            Pin{kHost, set},    Unpin{set}};
  }

  Harness harness_{three_tiers()};
  Harness::Client* client_ = harness_.open();
};

TEST_F(Refusals, OfASessionThatIsNotOpen) {
  const auto& closing = *harness_.open();
  const Handle a = harness_.create(closing, "a", kMiB);
  harness_.write(closing, a, 1);
  harness_.send(closing.id, Move{shm::kPlaceBlock, {a}});
  const RequestId closes = harness_.send(closing.id, CloseSession{});
  ASSERT_EQ(harness_.transfers.size(), 1u);
  std::vector<Body> all = naming({a});
  all.insert(all.end(), {CloseSession{}, CreateTensors{{spec_of("b", 1)}}, Release{shm::Mode::kRead, {a}}, MarkStep{},
                         ListTensors{}});
  for (const SessionId id : {closing.id, SessionId{99}})
    for (const Body& body : all) {
      const RequestId asked = harness_.send(id, body);
      const auto refused = harness_.reply(asked);
      ASSERT_FALSE(refused) << "request " << body.index();
      EXPECT_EQ(refused.error().code, ErrorCode::kNotFound) << "request " << body.index();
      EXPECT_THAT(refused.error().message, HasSubstr("session " + std::to_string(static_cast<std::uint32_t>(id))));
    }
  harness_.engine->accessed(harness_.now, closing.id, std::vector<Access>{{a.slot, shm::Mode::kRead}}, 1);
  harness_.engine->session_died(harness_.now, closing.id);
  harness_.engine->session_died(harness_.now, SessionId{99});
  harness_.engine->lease_ended(harness_.now, SessionId{99});
  harness_.drain();
  EXPECT_FALSE(harness_.answered(closes)) << "nor is it over by any of that: a transfer still reads its bytes";
  EXPECT_EQ(harness_.status().places[0].hits, 0u);
  harness_.settle();
  EXPECT_TRUE(harness_.reply(closes));
}

TEST_F(Refusals, OfTensorsThatThereAreNot) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  const Handle gone = harness_.create(*client_, "gone", kMiB);
  harness_.write(*client_, a, 1);
  ASSERT_TRUE(harness_.ask(client_->id, DeleteTensors{{gone}}));
  const Handle next{gone.slot, gone.incarnation + 1};
  for (const Body& body : naming({a, {Slot{77}, 1}})) refuses(body, ErrorCode::kNotFound, "no tensor in slot 77");
  for (const Body& body : naming({a, next})) refuses(body, ErrorCode::kNotFound, "no tensor in slot 1");
  for (const Body& body : naming({a, gone})) refuses(body, ErrorCode::kAborted, "slot 1, incarnation 1 was deleted");
  for (const Body& body : naming({a, a})) refuses(body, ErrorCode::kInvalidArgument, "'a' is twice in the set");
  for (const Body& body : naming(std::vector<Handle>(shm::kSetMax + 1, a)))
    refuses(body, ErrorCode::kInvalidArgument, "65537 tensors in a set: at most 65536");
  EXPECT_EQ(harness_.read(*client_, a), 1u) << "nothing happened to the one that there is";
}

TEST_F(Refusals, OfWhatIsGoneAreNoneWhenItIsAskedAgain) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  const Handle gone = harness_.create(*client_, "gone", kMiB);
  ASSERT_TRUE(harness_.ask(client_->id, DeleteTensors{{gone}}));
  EXPECT_TRUE(harness_.ask(client_->id, DeleteTensors{{a, gone}, true}));
  EXPECT_EQ(harness_.status().sessions[0].tensors, 0u);
  const Handle b = harness_.create(*client_, "b", kMiB);
  refuses(Unpin{{b}}, ErrorCode::kFailedPrecondition, "'b' is not pinned");
  EXPECT_TRUE(harness_.ask(client_->id, Unpin{{b}, true}));
}

TEST_F(Refusals, OfReleasesNameTheFirstAndEndTheRest) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  const Handle b = harness_.create(*client_, "b", kMiB);
  const Handle gone = harness_.create(*client_, "gone", kMiB);
  ASSERT_TRUE(harness_.ask(client_->id, DeleteTensors{{gone}}));
  for (const Handle tensor : {a, b}) harness_.write(*client_, tensor, 1);
  const auto release = [&](std::vector<Handle> set, ErrorCode code, const char* what) {
    ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kRead, {a}));
    refuses(Release{shm::Mode::kRead, std::move(set)}, code, what);
    EXPECT_FALSE(client_->table.load(a.slot).leased()) << what;
  };
  release({{Slot{255}, 1}, a}, ErrorCode::kNotFound, "no tensor in slot 255");
  release({gone, a}, ErrorCode::kAborted, "slot 2, incarnation 1 was deleted");
  release({{a.slot, a.incarnation + 1}, a}, ErrorCode::kAborted, "slot 0, incarnation 2 was deleted");
  release({b, gone, a}, ErrorCode::kFailedPrecondition, "'b' is not leased in this mode");
}

TEST_F(Refusals, OfPlaces) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 1);
  refuses(Prefetch{kDevice + 3, {a}}, ErrorCode::kNotFound, "no place device:3 here: this daemon has device:0, host");
  refuses(Prefetch{shm::kPlaceBlock, {a}}, ErrorCode::kNotFound, "no place block here");
  refuses(Move{kDevice + 1, {a}}, ErrorCode::kNotFound, "this daemon has device:0, host, block");
  Options options = three_tiers();
  options.tiers.erase(options.tiers.begin() + 1);
  Harness without(options);
  const auto refused = without.ask(without.open()->id, Acquire{kHost, shm::Mode::kRead, {a}});
  EXPECT_THAT(refused.error().message, HasSubstr("no place host here: this daemon has device:0"));
}

TEST_F(Refusals, OfSpecsThatSayTwoThings) {
  TensorSpec spec = spec_of("a", 64);
  spec.shape.assign(9, 1);
  refuses(CreateTensors{{spec}}, ErrorCode::kInvalidArgument, "tensor 'a': 9 dimensions: at most 8");
  spec.shape = {4, 4};
  spec.strides = {4};
  refuses(CreateTensors{{spec}}, ErrorCode::kInvalidArgument, "tensor 'a': 1 strides for 2 dimensions");
  refuses(CreateTensors{{spec_of("b", 1), spec_of("b", 1)}}, ErrorCode::kAlreadyExists, "a tensor 'b' already");
  refuses(CreateTensors{std::vector<TensorSpec>(shm::kSetMax + 1, spec_of("c", 1))}, ErrorCode::kInvalidArgument,
          "65537 tensors in one call: at most 65536");
  EXPECT_EQ(harness_.status().sessions[0].tensors, 0u);
  spec.strides = {4, 1};
  ASSERT_TRUE(harness_.ask(client_->id, CreateTensors{{spec}}));
  const auto listed = harness_.ask(client_->id, ListTensors{});
  const TensorSpec kept = std::get<TensorList>(*listed).tensors.at(0).spec;
  EXPECT_EQ(kept.shape, spec.shape);
  EXPECT_EQ(kept.strides, spec.strides);
}

// Homes in memory wait for their segment: a name that was free when it was asked for may be taken when it is given.
TEST_F(Refusals, OfANameThatSomebodyGotMeanwhile) {
  Options options = three_tiers();
  options.tiers.pop_back();
  Harness harness(options);
  const auto& client = *harness.open();
  const RequestId first = harness.send(client.id, CreateTensors{{spec_of("a", kMiB)}});
  const RequestId second = harness.send(client.id, CreateTensors{{spec_of("b", kMiB), spec_of("a", kMiB)}});
  EXPECT_FALSE(harness.answered(first) || harness.answered(second));
  harness.settle();
  EXPECT_TRUE(harness.reply(first));
  const auto refused = harness.reply(second);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(harness.status().sessions[0].tensors, 1u);
}

TEST_F(Refusals, OfAQuotaAreOfItsTenantAlone) {
  Options options = three_tiers();
  options.quotas = {{.tenant_socket = 7, .home_bytes_max = kMiB}, {.tenant_socket = 8, .home_bytes_max = 0}};
  Harness harness(options);
  const auto open_as = [&](std::uint32_t socket) {
    OpenSession open;
    open.tenant = {.socket = socket, .uid = 1};
    open.guarantees = {{kDevice, 0}, {kHost, 0}};
    return harness.open(open);
  };
  const auto& bounded = *open_as(7);
  for (const std::uint32_t socket : {8u, 9u}) harness.create(*open_as(socket), "large", 4 * kMiB);
  harness.create(bounded, "a", kMiB);
  const auto refused = harness.ask(bounded.id, CreateTensors{{spec_of("b", 1)}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("1048576 of 1048576 bytes are used"));
}

TEST_F(Refusals, OfAQuotaAreOfItsUserAlone) {
  Options options = three_tiers();
  options.quotas = {{.tenant_socket = 7, .home_bytes_max = kMiB}};
  Harness harness(options);
  const auto open_as = [&](std::uint32_t uid) {
    OpenSession open;
    open.tenant = {.socket = 7, .uid = uid};
    open.guarantees = {{kDevice, 0}, {kHost, 0}};
    return harness.open(open);
  };
  const auto& one = *open_as(1);
  harness.create(one, "a", kMiB);
  harness.create(*open_as(2), "a", kMiB);
  const auto refused = harness.ask(open_as(1)->id, CreateTensors{{spec_of("b", 1)}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("quota of the tenant's user: 1048576 of 1048576 bytes are used"));
}

TEST_F(Refusals, OfASessionWithoutATableOrWithOneThatIsTooLarge) {
  EXPECT_EQ(harness_.open({}, 0), nullptr);
  EXPECT_EQ(harness_.refusal.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(harness_.refusal.message, HasSubstr("a lease table of at least one slot"));
  EXPECT_EQ(harness_.open({}, 257), nullptr);
  EXPECT_EQ(harness_.refusal.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(harness_.refusal.message, HasSubstr("a lease table of 257 slots, and the catalog holds 256"));
  EXPECT_EQ(harness_.status().sessions.size(), 1u);
}

TEST_F(Refusals, OfWhateverWouldWaitBeyondTheBound) {
  Options options = three_tiers();
  options.requests_waiting_max = 1;
  Harness harness(options);
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 1);
  const RequestId waits = harness.send(client.id, Move{shm::kPlaceBlock, {a}});
  OpenSession open;
  std::vector<shm::TableSlot> slots(1);
  open.table = LeaseTable(slots);
  for (const Body& body : {Body{open}, Body{CloseSession{}}, Body{CreateTensors{{spec_of("b", 1)}}}}) {
    const auto refused = harness.reply(harness.send(client.id, body));
    ASSERT_FALSE(refused) << "request " << body.index();
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    EXPECT_THAT(refused.error().message, HasSubstr("1 requests wait already"));
  }
  harness.settle();
  EXPECT_TRUE(harness.reply(waits));
  EXPECT_EQ(harness.read(client, a), 1u) << "the session was not closed";
}

TEST_F(Refusals, OfAnOpenThatNobodyWaitsForAnyMore) {
  OpenSession half;
  half.guarantees = {{kDevice, 2 * kMiB}, {kHost, 0}};
  Harness harness(three_tiers());
  const auto& client = *harness.open(half);
  std::vector<Handle> tensors;
  for (const char* name : {"a", "b"}) {
    tensors.push_back(harness.create(client, name, 2 * kMiB));
    harness.write(client, tensors.back(), 1);
    ASSERT_TRUE(harness.acquire(client, kDevice, shm::Mode::kRead, {tensors.back()}));
  }
  std::vector<shm::TableSlot> slots(1);
  half.table = LeaseTable(slots);
  const RequestId opens = harness.send(SessionId{}, half);
  const auto lent = [&] { return client.table.load(tensors[0].slot).lent || client.table.load(tensors[1].slot).lent; };
  EXPECT_TRUE(lent());
  harness.engine->cancel(harness.now, RequestId{4711});
  harness.drain();
  EXPECT_TRUE(lent());
  harness.engine->cancel(harness.now, opens);
  harness.drain();
  EXPECT_EQ(harness.reply(opens).error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(lent()) << "nothing is asked back for it any more";
  EXPECT_EQ(harness.status().sessions.size(), 1u);
}

TEST_F(Refusals, OfACloseThatNobodyWaitsForAnyMore) {
  const Handle a = harness_.create(*client_, "a", kMiB);
  harness_.write(*client_, a, 1);
  harness_.send(client_->id, Move{shm::kPlaceBlock, {a}});
  const RequestId closes = harness_.send(client_->id, CloseSession{});
  harness_.engine->cancel(harness_.now, closes);
  harness_.drain();
  EXPECT_EQ(harness_.reply(closes).error().code, ErrorCode::kCancelled);
  EXPECT_FALSE(client_->gone);
  harness_.settle();
  EXPECT_TRUE(client_->gone) << "it closes all the same";

  client_ = harness_.open();
  const Handle b = harness_.create(*client_, "b", kMiB);
  harness_.write(*client_, b, 1);
  harness_.send(client_->id, Move{shm::kPlaceBlock, {b}});
  const RequestId late = harness_.send(client_->id, CloseSession{}, harness_.now + Duration(10));
  harness_.advance(harness_.now + Duration(10));
  const auto refused = harness_.reply(late);
  EXPECT_EQ(refused.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(refused.error().message, HasSubstr("its transfers are still under way"));
  harness_.settle();
  EXPECT_TRUE(client_->gone);
}

TEST_F(Refusals, OfPrefetchesBeyondTheQueueAreCounted) {
  std::vector<Handle> tensors;
  for (int i = 0; i < 256; ++i) {
    tensors.push_back(harness_.create(*client_, std::to_string(i), kPageBytes));
    harness_.write(*client_, tensors.back(), static_cast<std::uint64_t>(i));
  }
  ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, tensors}));
  constexpr std::uint64_t kRunning = 32;
  for (std::uint64_t i = 0; i <= shm::kSetMax / tensors.size(); ++i)
    EXPECT_TRUE(harness_.reply(harness_.send(client_->id, Prefetch{kDevice, tensors}))) << "a hint is never refused";
  EXPECT_EQ(harness_.status().prefetches.refused, tensors.size() - kRunning);
  ASSERT_TRUE(harness_.ask(client_->id, DeleteTensors{{tensors.back()}}));
  harness_.settle();
  EXPECT_EQ(harness_.status().prefetches.refused, tensors.size() - kRunning) << "what is gone is no refusal";
  for (std::uint64_t i = 0; i < 255; ++i) EXPECT_EQ(harness_.read(*client_, tensors[i]), i);
  EXPECT_EQ(harness_.status().prefetches.used, 255u);
}

// The table of checksums gives each tensor entries side by side. Tensors of one entry each are moved about in it until
// every other entry is free, while the free pages of the tier lie together.
// The longest texts and shorter ones fill the catalog by turns. Where the shorter ones were, none of the longest fits.
TEST_F(Refusals, OfANameThatFindsNoRoomInTheCatalogSideBySide) {
  constexpr std::uint32_t kMost = 256;
  Harness harness(three_tiers(), {.sessions_max = 1, .tensors_per_session_max = kMost});
  const auto& client = *harness.open({}, kMost);
  int made = 0;
  const auto named = [&](std::size_t name_bytes) {
    const std::string number = std::to_string(made++);
    TensorSpec spec = spec_of(number + std::string(name_bytes - number.size(), 'n'), 1);
    spec.shape = spec.strides = std::vector<std::int64_t>(kRankMax, 1);
    return spec;
  };
  const auto create = [&](std::size_t count, std::size_t name_bytes) {
    CreateTensors all;
    while (all.tensors.size() < count) all.tensors.push_back(named(name_bytes));
    return harness.ask(client.id, std::move(all));
  };
  constexpr std::size_t kShorter = kNameBytesMax - kTextUnitBytes;
  CreateTensors all;
  while (all.tensors.size() < kMost)
    all.tensors.push_back(named(all.tensors.size() % 2 == 0 ? kNameBytesMax : kShorter));
  const auto handles = harness.ask(client.id, std::move(all));
  ASSERT_TRUE(handles);
  DeleteTensors shorter;
  for (std::size_t i = 1; i < kMost; i += 2) shorter.tensors.push_back(std::get<Handles>(*handles).tensors[i]);
  ASSERT_TRUE(harness.ask(client.id, std::move(shorter)));
  const auto refused = create(kMost / 2, kNameBytesMax);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("find no room in the catalog: delete others"));
  EXPECT_TRUE(create(kMost / 2, kShorter)) << "what was reserved before is given back";
}

TEST_F(Refusals, OfAHomeWhoseChecksumsFindNoRoomSideBySide) {
  constexpr int kPages = 520;
  Harness harness(three_tiers(4 * kMiB, 8 * kMiB, kPages * kPageBytes),
                  {.sessions_max = 1, .tensors_per_session_max = 1024});
  const auto& client = *harness.open({}, 1024);
  const auto remove = [&](Handle tensor) { ASSERT_TRUE(harness.ask(client.id, DeleteTensors{{tensor}})); };
  const Handle front = harness.create(client, "front", kPages / 2 * kPageBytes / 2);
  const Handle back = harness.create(client, "back", kPages / 2 * kPageBytes / 2);
  std::vector<Handle> stay;
  for (int i = 0; i < kPages / 2; ++i) stay.push_back(harness.create(client, std::to_string(i), kPageBytes));
  remove(front);
  remove(back);
  std::vector<Handle> spacers;
  for (int i = 1; i < kPages / 2; i += 2) {
    const std::string name = std::to_string(i);
    remove(stay[static_cast<std::size_t>(i)]);
    const Handle holds = harness.create(client, "two pages" + name, 2 * kPageBytes);  // the entry, not the page
    harness.create(client, "moved" + name, kPageBytes);                               // the page, and a later entry
    remove(holds);
    spacers.push_back(harness.create(client, "old" + name, kPageBytes));
    if (i + 2 < kPages / 2) spacers.push_back(harness.create(client, "new" + name, kPageBytes));
  }
  for (const Handle spacer : spacers) remove(spacer);
  const auto block = [&] { return harness.status().tiers[2]; };
  EXPECT_EQ(block().used_bytes, kPages / 2 * kPageBytes);
  EXPECT_EQ(block().largest_free_bytes, kPages / 2 * kPageBytes);
  const auto refused = harness.ask(client.id, CreateTensors{{spec_of("one", kPageBytes), spec_of("two", kMiB + 1)}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("'two'"), HasSubstr("2 checksums")));
  EXPECT_EQ(block().largest_free_bytes, kPages / 2 * kPageBytes) << "what was reserved before is given back";
  EXPECT_TRUE(harness.ask(client.id, CreateTensors{{spec_of("one", kPageBytes), spec_of("two", kMiB)}}));
}

}  // namespace
}  // namespace terrace::engine
