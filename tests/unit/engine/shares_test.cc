// SPDX-License-Identifier: Apache-2.0
// Shows that several sessions read one share's tensors where they lie once, that one at a time writes them, and that
// whoever goes takes nothing of the others' with it.
#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

struct KillNow {};
constexpr KillNow kill_now;

class Shares : public ::testing::Test {
 protected:
  Shares() : harness_(three_tiers()) {}
  Harness::Client* open(const std::string& name, bool create, bool write = true, Tenant tenant = {}) {
    OpenSession open;
    open.tenant = tenant;
    open.share = ShareAccess{name, create, write};
    open.maps_segments = true;
    if (create) open.guarantees = {{kHost, 2 * kSegment}, {kDevice, kSegment}};
    return harness_.open(open);
  }
  shm::Word word(const Harness::Client& client, Handle tensor) { return client.table.load(tensor.slot); }
  // A lease in the client's own table; false: it is to ask.
  static bool lease(Harness::Client& client, Handle tensor, shm::Mode mode) {
    return shm::acquire(client.table.word(tensor.slot), tensor.incarnation, mode).outcome == shm::Outcome::kDone;
  }
  // As replies that wait are: not there yet.
  RequestId ask(const Harness::Client& client, Modes modes, std::vector<Handle> set, Time deadline = kNever) {
    const RequestId id = harness_.send(client.id, Acquire{kHost, std::move(modes), std::move(set)}, deadline);
    harness_.settle();
    return id;
  }
  // One who writes and one who reads, and a tensor of the first.
  void begin() {
    writer_ = open("weights", true);
    reader_ = open("weights", false, false);
    ASSERT_NE(writer_, nullptr) << harness_.refusal.message;
    ASSERT_NE(reader_, nullptr) << harness_.refusal.message;
    tensor_ = harness_.create(*writer_, "layer", kMiB);
    harness_.write(*writer_, tensor_, 1000, kHost);
  }

  Harness harness_;
  Harness::Client* writer_ = nullptr;
  Harness::Client* reader_ = nullptr;
  Handle tensor_;
};

TEST_F(Shares, AreJoinedWithATableOfTheirSizeAlone) {
  begin();
  OpenSession open;
  open.share = ShareAccess{"weights", false, false};
  open.maps_segments = true;
  EXPECT_EQ(harness_.open(open, 128), nullptr);
  EXPECT_EQ(harness_.refusal.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(harness_.refusal.message, HasSubstr("a table of 128 slots, where those of share 'weights' have 256"));
}

TEST_F(Shares, AreReadBySeveralWithoutTheDaemonAndHeldOnce) {
  begin();
  EXPECT_EQ(harness_.read(*reader_, tensor_, kHost), 1000u);
  for (Harness::Client* client : {writer_, reader_}) {
    ASSERT_TRUE(lease(*client, tensor_, shm::Mode::kRead)) << "both words show it";
    EXPECT_EQ(harness_.look(*client, tensor_), 1000u);
    EXPECT_FALSE(lease(*client, tensor_, shm::Mode::kWrite)) << "and writing is the daemon's to allow";
  }
  const Status status = harness_.status();
  EXPECT_EQ(status.tiers[1].used_bytes, kMiB);
  ASSERT_EQ(status.sessions.size(), 1u);
  EXPECT_EQ(status.sessions[0].label, "weights");
  ASSERT_EQ(status.sessions[0].members.size(), 2u);
  EXPECT_EQ(status.sessions[0].members[1].leases, 1u);
  for (Harness::Client* client : {writer_, reader_}) harness_.release(*client, tensor_, shm::Mode::kRead);
}

TEST_F(Shares, AreWrittenByOneWhoHasTheTensorAlone) {
  begin();
  ASSERT_TRUE(harness_.acquire(*writer_, kHost, shm::Mode::kWrite, {tensor_}));
  EXPECT_FALSE(lease(*reader_, tensor_, shm::Mode::kRead));
  const RequestId waits = ask(*reader_, shm::Mode::kRead, {tensor_});
  EXPECT_FALSE(harness_.answered(waits));
  harness_.fill(*writer_, tensor_, 7000);
  harness_.release(*writer_, tensor_, shm::Mode::kWrite);
  harness_.settle();
  ASSERT_TRUE(harness_.reply(waits).has_value()) << "the release wakes who waits";
  EXPECT_EQ(harness_.look(*reader_, tensor_), 7000u);

  const RequestId writes = ask(*writer_, shm::Mode::kOverwrite, {tensor_});
  EXPECT_FALSE(harness_.answered(writes));
  EXPECT_FALSE(lease(*reader_, tensor_, shm::Mode::kRead)) << "readers that come later do not starve who writes";
  harness_.release(*reader_, tensor_, shm::Mode::kRead);
  EXPECT_TRUE(harness_.reply(writes).has_value());
}

// Who reads one tensor of a set and writes another waits for readers of the latter alone, and has that one alone.
TEST_F(Shares, AreReadAndWrittenInOneSet) {
  begin();
  const Handle written = harness_.create(*writer_, "written", kMiB);
  harness_.write(*writer_, written, 2000, kHost);
  const std::vector<Handle> both{tensor_, written};
  const std::vector modes{shm::Mode::kRead, shm::Mode::kWrite};
  for (const Handle each : both) {
    ASSERT_TRUE(harness_.read(*reader_, each, kHost)) << "from here on everybody's";
    ASSERT_TRUE(lease(*reader_, each, shm::Mode::kRead));
  }
  const RequestId waits = ask(*writer_, modes, both);
  EXPECT_FALSE(harness_.answered(waits));
  harness_.release(*reader_, written, shm::Mode::kRead);
  harness_.settle();
  ASSERT_TRUE(harness_.reply(waits).has_value()) << "though the reader still has the other";
  EXPECT_EQ(word(*reader_, tensor_).readers, 1u);
  EXPECT_TRUE(word(*writer_, tensor_).readers == 1 && word(*writer_, tensor_).writers == 0);
  EXPECT_TRUE(word(*writer_, written).readers == 0 && word(*writer_, written).writers == 1);
  EXPECT_FALSE(lease(*reader_, written, shm::Mode::kRead));
  EXPECT_TRUE(lease(*reader_, tensor_, shm::Mode::kRead));
  harness_.fill(*writer_, written, 3000);
  for (std::size_t i = 0; i < both.size(); ++i) harness_.release(*writer_, both[i], modes[i]);
  EXPECT_EQ(harness_.read(*reader_, written, kHost), 3000u);
  EXPECT_EQ(harness_.reply(ask(*reader_, modes, both)).error().code, ErrorCode::kPermissionDenied)
      << "a set that is written in part is written";
}

TEST_F(Shares, AreReadBesideWhoWroteAndReadsNow) {
  begin();
  ASSERT_TRUE(lease(*writer_, tensor_, shm::Mode::kRead)) << "as it had it to write";
  EXPECT_EQ(word(*writer_, tensor_).state, shm::State::kResident);
  EXPECT_EQ(harness_.read(*reader_, tensor_, kHost), 1000u) << "nobody waits for a reader";
  EXPECT_EQ(word(*writer_, tensor_).state, shm::State::kShared);
  harness_.release(*writer_, tensor_, shm::Mode::kRead);
  ASSERT_TRUE(harness_.ask(writer_->id, Move{shm::kPlaceBlock, {tensor_}}));
  EXPECT_EQ(harness_.read(*reader_, tensor_, kHost), 1000u) << "what it wrote was written back";
}

TEST_F(Shares, KeepWhatOneWroteAfterItHasGoneAndTheOthersLeases) {
  begin();
  ASSERT_TRUE(harness_.acquire(*reader_, kHost, shm::Mode::kRead, {tensor_}));
  harness_.engine->session_died(harness_.now, writer_->id);
  harness_.drain();
  harness_.settle();
  EXPECT_TRUE(writer_->gone);
  EXPECT_EQ(harness_.look(*reader_, tensor_), 1000u) << "the lease stands";
  harness_.release(*reader_, tensor_, shm::Mode::kRead);
  EXPECT_EQ(harness_.read(*reader_, tensor_, kHost), 1000u);
  Harness::Client* next = open("weights", false);
  ASSERT_NE(next, nullptr);
  const auto found = harness_.ask(next->id, FindTensors{{"layer"}});
  ASSERT_TRUE(found);
  EXPECT_EQ(std::get<TensorList>(*found).tensors[0].handle, tensor_);
  const auto unknown = harness_.ask(next->id, FindTensors{{"layer", "head"}});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("there is no tensor 'head'"));
  for (Harness::Client* client : {reader_, next}) harness_.engine->session_died(harness_.now, client->id);
  harness_.drain();
  harness_.settle();
  EXPECT_TRUE(harness_.status().sessions.empty()) << "and it goes with the last";
  EXPECT_EQ(harness_.status().tiers[2].used_bytes, 0u);
}

TEST_F(Shares, SayThatATensorIsTornWhoseWriterDied) {
  begin();
  ASSERT_TRUE(harness_.acquire(*writer_, kHost, shm::Mode::kWrite, {tensor_}));
  Harness::Client* other = open("weights", false);
  const RequestId waits = ask(*reader_, shm::Mode::kRead, {tensor_});
  harness_.engine->session_died(harness_.now, writer_->id);
  harness_.drain();
  harness_.settle();
  const auto refused = harness_.reply(waits);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("'layer' is torn"));
  EXPECT_FALSE(harness_.acquire(*other, kHost, shm::Mode::kWrite, {tensor_}))
      << "writing into it would keep what is torn";
  harness_.write(*other, tensor_, 3000, kHost);
  EXPECT_EQ(harness_.read(*reader_, tensor_, kHost), 3000u);
}

TEST_F(Shares, AreWrittenOnlyByWhoOpenedThemForIt) {
  begin();
  const auto denied = [&](Body body) {
    const auto result = harness_.ask(reader_->id, std::move(body));
    return !result && result.error().code == ErrorCode::kPermissionDenied &&
           result.error().message.find("'weights' for reading") != std::string::npos;
  };
  EXPECT_TRUE(denied(Acquire{kHost, shm::Mode::kWrite, {tensor_}}));
  EXPECT_TRUE(denied(Acquire{kHost, shm::Mode::kOverwrite, {tensor_}}));
  EXPECT_TRUE(denied(CreateTensors{{spec_of("another", kMiB)}}));
  EXPECT_TRUE(denied(DeleteTensors{{tensor_}}));
  EXPECT_TRUE(denied(DontNeed{{tensor_}}));
}

TEST_F(Shares, AreFoundByNameWithinTheirTenantAlone) {
  begin();
  EXPECT_EQ(open("weights", true), nullptr);
  EXPECT_EQ(harness_.refusal.code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(open("gradients", false), nullptr);
  EXPECT_EQ(harness_.refusal.code, ErrorCode::kNotFound);
  for (const Tenant tenant : {Tenant{.socket = 0, .uid = 7}, Tenant{.socket = 1, .uid = 0}}) {
    EXPECT_EQ(open("weights", false, false, tenant), nullptr);
    EXPECT_EQ(harness_.refusal.code, ErrorCode::kNotFound) << "another tenant's is none";
  }
  EXPECT_NE(open("weights", true, true, {.socket = 0, .uid = 7}), nullptr) << "and its name is free there";
  EXPECT_EQ(open("", true), nullptr);
  EXPECT_EQ(harness_.refusal.code, ErrorCode::kInvalidArgument);
  for (const std::string& name :
       {std::string(64, 'n'), std::string("a\0b", 3), std::string("a\nb"), std::string("\xFF")}) {
    EXPECT_EQ(open(name, true), nullptr);
    EXPECT_EQ(harness_.refusal.code, ErrorCode::kInvalidArgument);
  }
  OpenSession with_guarantees;
  with_guarantees.share = ShareAccess{"weights", false, false};
  with_guarantees.guarantees = {{kHost, kSegment}};
  EXPECT_EQ(harness_.open(with_guarantees), nullptr);
  EXPECT_EQ(harness_.refusal.code, ErrorCode::kInvalidArgument);
}

TEST_F(Shares, RefuseToHoldOneLeaseAndWaitForOthers) {
  begin();
  const Handle second = harness_.create(*writer_, "second", kMiB);
  harness_.write(*writer_, second, 2000, kHost);
  Harness::Client* other = open("weights", false);
  ASSERT_TRUE(harness_.acquire(*writer_, kHost, shm::Mode::kWrite, {tensor_}));
  ASSERT_TRUE(harness_.acquire(*other, kHost, shm::Mode::kWrite, {second}));
  const auto refused = harness_.acquire(*writer_, kHost, shm::Mode::kRead, {second});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("'second' is leased by other sessions of share 'weights'"));
  const auto own = harness_.acquire(*other, kDevice, shm::Mode::kRead, {second});
  ASSERT_FALSE(own);
  EXPECT_THAT(own.error().message, HasSubstr("'second' is leased at host"));
  harness_.release(*writer_, tensor_, shm::Mode::kWrite);
  harness_.release(*other, second, shm::Mode::kWrite);
}

TEST_F(Shares, RefuseToWaitForOthersRoomWhileHoldingLeases) {
  Harness::Client& one = *open("weights", true);
  Harness::Client& two = *open("weights", false);
  std::vector<Handle> tensors;
  for (int i = 0; i < 10; ++i) {  // the share may have all 8 MiB of memory
    tensors.push_back(harness_.create(one, std::to_string(i), kMiB));
    harness_.write(one, tensors.back(), 1000, kHost);
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(harness_.acquire(one, kHost, shm::Mode::kRead, {tensors[static_cast<std::size_t>(i)]}));
    ASSERT_TRUE(harness_.acquire(two, kHost, shm::Mode::kRead, {tensors[static_cast<std::size_t>(4 + i)]}));
  }
  const auto refused = harness_.acquire(one, kHost, shm::Mode::kRead, {tensors[8]});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("by other sessions of share 'weights' too"));
}

TEST_F(Shares, LetWhoHoldsALeaseReadPastWhoeverWaitsForIt) {
  begin();
  ASSERT_TRUE(harness_.acquire(*reader_, kHost, shm::Mode::kRead, {tensor_}));
  const RequestId writes = ask(*writer_, shm::Mode::kOverwrite, {tensor_});
  EXPECT_FALSE(harness_.answered(writes));
  EXPECT_TRUE(harness_.acquire(*reader_, kHost, shm::Mode::kRead, {tensor_})) << "once more, within the first";
  harness_.release(*reader_, tensor_, shm::Mode::kRead);
  EXPECT_FALSE(harness_.answered(writes));
  harness_.release(*reader_, tensor_, shm::Mode::kRead);
  EXPECT_TRUE(harness_.reply(writes).has_value());
  harness_.release(*writer_, tensor_, shm::Mode::kOverwrite);
}

TEST_F(Shares, LetReadersPastAWriterThatWaitsForBothOfThem) {
  begin();
  const Handle second = harness_.create(*writer_, "second", kMiB);
  harness_.write(*writer_, second, 2000, kHost);
  Harness::Client& other = *open("weights", false);
  ASSERT_TRUE(harness_.acquire(*reader_, kHost, shm::Mode::kRead, {tensor_}));
  ASSERT_TRUE(harness_.acquire(other, kHost, shm::Mode::kRead, {second}));
  const RequestId writes = ask(*writer_, shm::Mode::kOverwrite, {tensor_, second});
  EXPECT_TRUE(harness_.acquire(*reader_, kHost, shm::Mode::kRead, {second}));
  EXPECT_TRUE(harness_.acquire(other, kHost, shm::Mode::kRead, {tensor_}));
  for (const Harness::Client* client : {reader_, &other})
    for (const Handle tensor : {tensor_, second}) harness_.release(*client, tensor, shm::Mode::kRead);
  EXPECT_TRUE(harness_.reply(writes).has_value());
}

TEST_F(Shares, KeepWhatOneReleasedIfAnothersOverwriteNeverTookEffect) {
  for (std::uint64_t kill = 0; kill < 20; ++kill) {
    Harness harness(three_tiers());
    OpenSession open;
    open.share = ShareAccess{"weights", true, true};
    open.maps_segments = true;
    Harness::Client& one = *harness.open(open);
    open.share->create = false;
    Harness::Client& two = *harness.open(open);
    const Handle tensor = harness.create(one, "layer", kMiB);
    harness.write(one, tensor, 1000, kHost);
    harness.catalog.between_stores = [left = kill]() mutable {
      if (left-- == 0) throw kill_now;
    };
    bool killed = false;
    try {
      harness.send(two.id, Acquire{kHost, shm::Mode::kOverwrite, {tensor}});
    } catch (const KillNow&) {
      killed = true;
    }
    if (!killed) break;
    harness.restart([] { return true; });
    EXPECT_EQ(harness.read(one, tensor, kHost), 1000u) << "killed at store " << kill;
  }
}

TEST_F(Shares, MoveNothingThatOthersLease) {
  begin();
  ASSERT_TRUE(harness_.acquire(*reader_, kHost, shm::Mode::kRead, {tensor_}));
  for (const Body& body : {Body(Move{kDevice, {tensor_}}), Body(Pin{kDevice, {tensor_}})}) {
    const auto refused = harness_.ask(writer_->id, body);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_THAT(refused.error().message, HasSubstr("'layer' is leased at host by other sessions of share 'weights'"));
  }
  harness_.release(*reader_, tensor_, shm::Mode::kRead);
  EXPECT_TRUE(harness_.ask(writer_->id, Move{kDevice, {tensor_}}));
}

TEST_F(Shares, TellWhoWaitsTooLongForWhom) {
  begin();
  ASSERT_TRUE(harness_.acquire(*reader_, kHost, shm::Mode::kRead, {tensor_}));
  const RequestId waits = ask(*writer_, shm::Mode::kOverwrite, {tensor_}, harness_.now + Duration(50));
  harness_.advance(harness_.now + Duration(60));
  const auto late = harness_.reply(waits);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(late.error().message, HasSubstr("share 'weights' still held leases: 'layer' (1 readers, 0 writers)"));
  EXPECT_FALSE(word(*reader_, tensor_).wanted) << "and readers are let in again";
  harness_.release(*reader_, tensor_, shm::Mode::kRead);
}

TEST_F(Shares, ArePinnedByOneSessionWithWhichItsPinsGo) {
  begin();
  ASSERT_TRUE(harness_.ask(reader_->id, Pin{kDevice, {tensor_}}));
  for (const Body& body : {Body(Pin{kDevice, {tensor_}}), Body(Unpin{{tensor_}})}) {
    const auto refused = harness_.ask(writer_->id, body);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  }
  harness_.engine->session_died(harness_.now, reader_->id);
  harness_.drain();
  EXPECT_TRUE(harness_.ask(writer_->id, Pin{kHost, {tensor_}}));
}

TEST_F(Shares, OutliveTheDaemonWithEverybodysLeases) {
  begin();
  const Handle written = harness_.create(*writer_, "written", kMiB);
  ASSERT_TRUE(harness_.acquire(*writer_, kHost, shm::Mode::kOverwrite, {written}));
  harness_.fill(*writer_, written, 5000);
  ASSERT_TRUE(harness_.acquire(*reader_, kHost, shm::Mode::kRead, {tensor_}));
  ASSERT_TRUE(harness_.restart([] { return true; }).empty());
  EXPECT_EQ(word(*reader_, tensor_).readers, 1u);
  EXPECT_EQ(word(*writer_, written).writers, 1u);
  EXPECT_TRUE(lease(*writer_, tensor_, shm::Mode::kRead)) << "the fast path goes on for all of them";
  EXPECT_FALSE(lease(*reader_, written, shm::Mode::kRead));
  harness_.release(*writer_, tensor_, shm::Mode::kRead);
  harness_.release(*reader_, tensor_, shm::Mode::kRead);
  harness_.release(*writer_, written, shm::Mode::kOverwrite);
  EXPECT_EQ(harness_.read(*reader_, written, kHost), 5000u);
  EXPECT_EQ(open("weights", true), nullptr) << "its name is taken still";
  EXPECT_NE(open("weights", false), nullptr);
}

TEST_F(Shares, GoOnWithoutWhoWasLostWithTheDaemon) {
  begin();
  EXPECT_EQ(harness_.read(*reader_, tensor_, kHost), 1000u);
  const Handle written = harness_.create(*writer_, "written", kMiB);
  ASSERT_TRUE(harness_.acquire(*writer_, kHost, shm::Mode::kOverwrite, {written}));
  ASSERT_TRUE(harness_.ask(writer_->id, Pin{kHost, {tensor_}}));
  writer_->gone = true;  // its descriptors did not come back
  harness_.restart([] { return true; });
  EXPECT_EQ(harness_.read(*reader_, tensor_, kHost), 1000u);
  const auto torn = harness_.read(*reader_, written, kHost);
  ASSERT_FALSE(torn);
  EXPECT_THAT(torn.error().message, HasSubstr("torn"));
  EXPECT_TRUE(harness_.ask(reader_->id, Pin{kDevice, {tensor_}})) << "nobody has it pinned";
  reader_->gone = true;
  harness_.restart([] { return true; });
  EXPECT_TRUE(harness_.status().sessions.empty());
}

TEST_F(Shares, HaveNoStepsThatCouldBeDeclared) {
  begin();
  const DeclareStep::Set set{kHost, shm::Mode::kRead, {}, {tensor_}};
  const auto refused = harness_.ask(reader_->id, DeclareStep{.kind = 0, .position = 0, .sets = {set}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("share 'weights' has no steps of its own"));
}

TEST_F(Shares, CountAgainstTheBoundOfSessions) {
  std::vector<Harness::Client*> opened;
  for (std::uint32_t i = 0; i < Harness::shape().sessions_max; ++i) opened.push_back(open("weights", i == 0));
  EXPECT_EQ(std::ranges::count(opened, nullptr), 1) << "the share itself is one more";
  EXPECT_EQ(harness_.refusal.code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(opened.back(), nullptr);
}

}  // namespace
}  // namespace terrace::engine
