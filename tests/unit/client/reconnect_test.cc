// SPDX-License-Identifier: Apache-2.0
// Shows that a session outlives its daemon: what was under way is asked for again and never twice, what was answered is
// kept, calls made meanwhile wait, leases go on without anybody; and how it ends when no daemon comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "unit/client/scripted_daemon.h"

namespace terrace::client {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

class Reconnecting : public testing::Test {
 protected:
  Reconnecting() : client_(daemon_.open()), tensor_(daemon_.create(*client_, "weights", 4096, 3)), set_(&tensor_, 1) {
    memory_ = daemon_.pass_segment(shm::kPlaceHost, 0);
    daemon_.publish(3, {.state = shm::State::kResident}, 0);
    EXPECT_TRUE(client_->acquire(tensor_).has_value());  // so that the segment is mapped
    daemon_.publish(3, {.state = shm::State::kAbsent}, 0, shm::kPlaceNowhere);
  }
  // The daemon ends; the next one has the client's wish to go on, and has not answered.
  shm::Resume lose() {
    daemon_.hang_up();
    return daemon_.accept_resume();
  }
  // The daemon goes on, and gets everything that the client asked for before.
  void settle() {
    asked_.clear();
    const std::uint64_t before = client_->reconnects();
    daemon_.resume();
    EXPECT_TRUE(eventually([&] { return client_->reconnects() > before; }));
    Pending<void> last = client_->swap_out_async({});
    Asked asked = daemon_.next();
    for (; asked.submission.count != 0; asked = daemon_.next()) asked_.push_back(asked);
    daemon_.answer(asked);
    EXPECT_TRUE(last.wait(60s).has_value());
  }

  ScriptedDaemon daemon_;
  std::optional<Client> client_;
  Tensor tensor_;
  std::span<const Tensor> set_;
  std::byte* memory_ = nullptr;
  std::vector<Asked> asked_;  // by settle()
};

TEST_F(Reconnecting, AsksAgainForWhatHasNoAnswer) {
  Pending<std::vector<Lease>> acquiring = client_->acquire_async(set_, {.mode = Mode::kWrite});
  Pending<std::vector<Tensor>> creating = client_->create_async(std::vector<TensorSpec>{{.name = "new", .bytes = 64}});
  Pending<void> moving = client_->swap_out_async(set_);
  Pending<void> deleting = client_->destroy_async(set_);
  std::vector<Asked> before;
  for (int i = 0; i < 4; ++i) {
    before.push_back(daemon_.next());
    EXPECT_EQ(before.back().submission.flags, 0u);
    const shm::Submission& entry = before.back().submission;  // what it began to answer, or scribbled
    std::memset(daemon_.region().arena.data() + entry.block_offset, 0xEE, entry.block_bytes);
  }
  const shm::Resume resume = lose();
  EXPECT_EQ(resume.session, 42u);
  EXPECT_EQ(resume.token, ScriptedDaemon::kToken);
  EXPECT_EQ(resume.epoch, 0u);
  EXPECT_EQ(resume.completions_seen, 1u);
  settle();
  ASSERT_EQ(asked_.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const shm::Submission& again = asked_[i].submission;
    EXPECT_EQ(again.id, before[i].submission.id);
    EXPECT_EQ(again.operation, before[i].submission.operation);
    EXPECT_EQ(again.mode, before[i].submission.mode);
    EXPECT_EQ(again.place, before[i].submission.place);
    EXPECT_EQ(again.flags, shm::kResubmitted);
    EXPECT_LT(again.timeout_ns, before[i].submission.timeout_ns);
    EXPECT_GT(again.timeout_ns, 0u);
    EXPECT_EQ(asked_[i].handles, before[i].handles);
  }
  ASSERT_EQ(asked_[1].records.size(), 1u);
  EXPECT_STREQ(asked_[1].records[0].name.data(), "new");
  EXPECT_FALSE(moving.ready());
  daemon_.publish(3, {.state = shm::State::kResident, .writers = 1}, 0);
  daemon_.answer(asked_[0]);
  daemon_.answer(asked_[1], {ScriptedDaemon::handle(5)});
  daemon_.refuse(asked_[2], ErrorCode::kFailedPrecondition, "leased");
  daemon_.answer(asked_[3]);
  EXPECT_TRUE(acquiring.wait(60s).has_value());
  EXPECT_EQ(creating.wait(60s)->front().handle(), ScriptedDaemon::handle(5));
  EXPECT_EQ(moving.wait(60s).error().message, "leased");
  EXPECT_TRUE(deleting.wait(60s).has_value());
  EXPECT_EQ(client_->reconnects(), 1u);
}

// The next daemon knows nothing of the sets that were declared before it.
TEST_F(Reconnecting, DeclaresAStepFromItsFirstSetAgain) {
  const DeclaredSet set{{tensor_}};
  const std::vector<DeclaredSet> sets(2, set);
  auto declaring = beside([&] { return client_->declare_step(sets); });
  daemon_.answer(daemon_.next());
  const Asked second = daemon_.next();
  EXPECT_EQ(shm::DeclaredValue::unpack(second.submission.value).position, 1u);
  lose();
  settle();
  ASSERT_EQ(asked_.size(), 1u);
  daemon_.refuse(asked_[0], ErrorCode::kFailedPrecondition, "set 1 of a step whose first 0 are declared");
  for (std::uint32_t position = 0; position < 2; ++position) {
    const Asked again = daemon_.next();
    EXPECT_EQ(again.submission.operation, shm::Operation::kDeclareStep);
    EXPECT_EQ(shm::DeclaredValue::unpack(again.submission.value).position, position);
    daemon_.answer(again);
  }
  EXPECT_TRUE(declaring.get().has_value());

  auto refused = beside([&] { return client_->declare_step(sets); });
  daemon_.refuse(daemon_.next(), ErrorCode::kFailedPrecondition, "share 'a' has no steps of its own");
  EXPECT_EQ(refused.get().error().message, "share 'a' has no steps of its own");
}

TEST_F(Reconnecting, KeepsWhatWasAnswered) {
  Pending<void> answered = client_->swap_out_async(set_);
  Pending<void> open = client_->swap_in_async(set_, Place::host());
  daemon_.refuse(daemon_.next(), ErrorCode::kDataLoss, "gone");
  daemon_.next();
  EXPECT_EQ(lose().completions_seen, 2u);
  EXPECT_EQ(answered.wait(60s).error().message, "gone") << "no daemon is needed for what was answered";
  settle();
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_EQ(asked_[0].submission.place, shm::kPlaceHost);
  daemon_.answer(asked_[0]);
  EXPECT_TRUE(open.wait(60s).has_value());
  const shm::Resume second = lose();
  EXPECT_EQ(second.completions_seen, 2u) << "counted since the rings were emptied";
  EXPECT_EQ(second.epoch, 1u);
  settle();
  EXPECT_EQ(client_->reconnects(), 2u);
}

TEST_F(Reconnecting, SubmitsLaterWhatIsAskedMeanwhile) {
  lose();
  daemon_.rung();
  Pending<void> moving = client_->swap_out_async(set_);
  Pending<std::vector<Tensor>> creating = client_->create_async(std::vector<TensorSpec>{{.name = "new", .bytes = 64}});
  auto waiting = beside([&] { return client_->pin(set_); });
  EXPECT_FALSE(moving.ready());
  EXPECT_FALSE(daemon_.rung());
  EXPECT_EQ(daemon_.region().submission_index->tail, 1u) << "the rings are left alone";
  settle();
  while (asked_.size() < 3) asked_.push_back(daemon_.next());
  for (const Asked& asked : asked_) EXPECT_EQ(asked.submission.flags, 0u);
  for (const Asked& asked : asked_) daemon_.answer(asked, {ScriptedDaemon::handle(5)});
  EXPECT_TRUE(moving.wait(60s).has_value());
  EXPECT_EQ(creating.wait(60s)->size(), 1u);
  EXPECT_TRUE(waiting.get().has_value());
}

TEST_F(Reconnecting, SaysSinceWhenTheDaemonIsAway) {
  lose();
  const Result<void> moved = client_->swap_out(set_, Place::block(), 1ms);
  ASSERT_FALSE(moved.has_value());
  EXPECT_EQ(moved.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(moved.error().message, HasSubstr("terraced is away since 2"));
  Pending<std::vector<Lease>> acquiring = client_->acquire_async(set_, {.timeout = 1ms});
  EXPECT_TRUE(acquiring.ready(60s));
  EXPECT_EQ(acquiring.wait(0s).error().code, ErrorCode::kDeadlineExceeded);
  Pending<void> unseen = client_->swap_out_async(set_, Place::block(), 0s);
  settle();
  EXPECT_TRUE(asked_.empty()) << "too late, so not asked";
  EXPECT_THAT(unseen.wait(60s).error().message, HasSubstr("away"));
}

// For two seconds more than its timeout a call under way is the daemon's to answer. Then it has failed, and what came
// of it is undone.
TEST_F(Reconnecting, UndoesWhatComesTooLate) {
  Pending<std::vector<Lease>> unseen = client_->acquire_async(set_, {.timeout = 1ms});
  const std::vector<TensorSpec> specs{{.name = "late", .bytes = 64}};
  Pending<std::vector<Tensor>> seen = client_->create_async(specs, 1ms);
  lose();
  const Result<std::vector<Tensor>> created = seen.wait(60s);
  EXPECT_EQ(created.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(created.error().message, HasSubstr("away since"));
  settle();
  EXPECT_TRUE(unseen.ready());
  EXPECT_EQ(unseen.wait(0s).error().code, ErrorCode::kDeadlineExceeded);
  ASSERT_EQ(asked_.size(), 2u);
  for (const Asked& asked : asked_) {
    EXPECT_EQ(asked.submission.flags, shm::kResubmitted);
    EXPECT_EQ(asked.submission.timeout_ns, 0u);
  }
  daemon_.publish(3, {.state = shm::State::kResident, .readers = 1}, 0);
  daemon_.answer(asked_[0]);
  EXPECT_TRUE(eventually([&] { return daemon_.word(3).readers == 0; }));
  daemon_.answer(asked_[1], {ScriptedDaemon::handle(5)});
  const Asked undo = daemon_.next();
  EXPECT_EQ(undo.submission.operation, shm::Operation::kDelete);
  EXPECT_EQ(undo.handles, std::vector{ScriptedDaemon::handle(5)});
}

TEST_F(Reconnecting, GoesOnWithWhatNobodyWaitsFor) {
  {
    const Pending<std::vector<Lease>> under_way = client_->acquire_async(set_);
  }
  lose();
  {
    const Pending<void> meanwhile = client_->swap_out_async(set_);
    const Pending<std::vector<Lease>> in_vain = client_->acquire_async(set_);  // would be given back at once
  }
  settle();
  ASSERT_EQ(asked_.size(), 2u);
  EXPECT_EQ(asked_[0].submission.operation, shm::Operation::kAcquire);
  EXPECT_EQ(asked_[1].submission.operation, shm::Operation::kMove);
  daemon_.answer(asked_[1]);
  daemon_.publish(3, {.state = shm::State::kResident, .readers = 1}, 0);
  daemon_.answer(asked_[0]);
  EXPECT_TRUE(eventually([&] { return daemon_.word(3).readers == 0; }));
}

TEST_F(Reconnecting, HoldsAsManyRequestsAsARing) {
  Pending<void> under_way = client_->swap_out_async(set_);
  lose();
  std::vector<Pending<void>> pending;
  for (std::uint32_t i = 1; i < shm::kRingEntries; ++i) pending.push_back(client_->swap_out_async(set_));
  Pending<void> more = client_->swap_out_async(set_);
  EXPECT_TRUE(more.ready());
  EXPECT_EQ(more.wait(0s).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(client_->swap_out(set_, Place::block(), 1ms).error().code, ErrorCode::kDeadlineExceeded);
  daemon_.resume();
  std::uint64_t last_id = 0;
  for (std::uint32_t i = 0; i < shm::kRingEntries; ++i) {
    const Asked asked = daemon_.next();
    EXPECT_GT(asked.submission.id, last_id);
    last_id = asked.submission.id;
    daemon_.answer(asked);
  }
  EXPECT_TRUE(under_way.wait(60s).has_value());
  for (Pending<void>& each : pending) EXPECT_TRUE(each.wait(60s).has_value());
}

TEST_F(Reconnecting, LeasesWithoutADaemon) {
  daemon_.publish(3, {.state = shm::State::kResident}, 0);
  std::optional<Lease> before = std::move(*client_->acquire(tensor_, {.mode = Mode::kWrite}));
  daemon_.die();
  before->writable_bytes()[0] = std::byte{1};
  before.reset();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(client_->acquire(tensor_).has_value());
  std::optional<Lease> over = std::move(*client_->acquire(tensor_, {.mode = Mode::kWrite}));
  EXPECT_EQ(client_->reconnects(), 0u);
  daemon_.listen();
  daemon_.accept_resume();
  settle();
  over->writable_bytes()[1] = std::byte{2};
  EXPECT_EQ(daemon_.word(3).writers, 1u);
  over.reset();
  EXPECT_FALSE(daemon_.word(3).leased());
  EXPECT_EQ(memory_[0], std::byte{1});
  EXPECT_EQ(memory_[1], std::byte{2});
}

TEST_F(Reconnecting, KeepsSegmentsThatTheDaemonHas) {
  const auto write = [&](std::uint64_t offset, std::byte value) {
    daemon_.publish(3, {.state = shm::State::kResident}, offset);
    client_->acquire(tensor_, {.mode = Mode::kWrite}).value().writable_bytes()[0] = value;
  };
  daemon_.publish(3, {.state = shm::State::kResident}, 0);
  Lease lease = std::move(*client_->acquire(tensor_, {.mode = Mode::kWrite}));
  std::byte* const taken_back = daemon_.pass_segment(shm::kPlaceHost, kSegmentBytes);
  lose();
  daemon_.lose_segment(shm::kPlaceHost, kSegmentBytes);
  settle();
  lease.writable_bytes()[0] = std::byte{3};
  EXPECT_EQ(memory_[0], std::byte{3}) << "mapped all the while";
  ASSERT_TRUE(lease.release().has_value());
  std::byte* const fresh = daemon_.pass_segment(shm::kPlaceHost, kSegmentBytes);
  write(kSegmentBytes, std::byte{4});
  EXPECT_EQ(fresh[0], std::byte{4});
  EXPECT_EQ(taken_back[0], std::byte{0}) << "unmapped, so that another could come to lie there";
  lose();
  daemon_.lose_segment(shm::kPlaceHost, 0);
  std::byte* const other = daemon_.pass_segment(shm::kPlaceHost, 0);
  settle();
  write(0, std::byte{5});
  EXPECT_EQ(other[0], std::byte{5});
  EXPECT_EQ(memory_[0], std::byte{3}) << "told apart by what it is";
}

// The daemon dies between granting a lease and passing the memory behind it.
TEST_F(Reconnecting, WaitsForASegmentOfTheNextDaemon) {
  auto acquiring = beside([&] { return client_->acquire(tensor_); });
  const Asked asked = daemon_.next();
  daemon_.publish(3, {.state = shm::State::kResident, .readers = 1}, kSegmentBytes);
  daemon_.answer(asked);
  lose();
  daemon_.resume();
  daemon_.pass_segment(shm::kPlaceHost, 0);
  std::byte* const fresh = daemon_.pass_segment(shm::kPlaceHost, kSegmentBytes);
  fresh[0] = std::byte{9};
  const Result<Lease> lease = acquiring.get();
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  EXPECT_EQ(lease->bytes()[0], std::byte{9});
}

TEST_F(Reconnecting, TriesAgainWhileTheDaemonIsNotReady) {
  Pending<void> moving = client_->swap_out_async(set_);
  lose();
  daemon_.refuse_to_resume(ErrorCode::kUnavailable, "reading the catalog");
  daemon_.take_connection();  // and hears nobody, so many are there
  daemon_.refuse_to_resume(ErrorCode::kResourceExhausted, "too many connections");
  daemon_.take_connection();
  daemon_.hang_up();
  daemon_.accept_resume();
  settle();
  ASSERT_EQ(asked_.size(), 1u);
  daemon_.answer(asked_[0]);
  EXPECT_TRUE(moving.wait(60s).has_value());
  EXPECT_EQ(client_->reconnects(), 1u);
}

TEST_F(Reconnecting, OutlivesADaemonThatDiesWhileItGoesOn) {
  Pending<void> moving = client_->swap_out_async(set_);
  const shm::Resume first = lose();
  daemon_.reset_rings();  // and it says nothing any more
  ++daemon_.region().header->epoch;
  EXPECT_FALSE(moving.ready());
  const shm::Resume second = lose();
  EXPECT_EQ(second.epoch, first.epoch);
  EXPECT_EQ(second.completions_seen, first.completions_seen);
  EXPECT_EQ(second.token, first.token);
  daemon_.resume();
  const Asked asked = daemon_.next();
  EXPECT_EQ(asked.submission.flags, shm::kResubmitted);
  EXPECT_EQ(lose().epoch, 2u);  // this one took the request, and died as well
  settle();
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_EQ(asked_[0].submission.id, asked.submission.id);
  daemon_.answer(asked_[0]);
  EXPECT_TRUE(moving.wait(60s).has_value());
}

TEST_F(Reconnecting, EndsWhenTheDaemonHasNoSuchSession) {
  daemon_.publish(3, {.state = shm::State::kResident}, 0);
  Pending<void> moving = client_->swap_out_async(set_);
  lose();
  auto waiting = beside([&] { return client_->swap_out(set_); });
  daemon_.refuse_to_resume(ErrorCode::kNotFound, "terraced started afresh");
  for (const Error& error : {moving.wait(60s).error(), waiting.get().error(), client_->mark_step().error()}) {
    EXPECT_EQ(error.code, ErrorCode::kNotFound);
    EXPECT_THAT(error.message, HasSubstr("terraced started afresh. Leases that are held stay valid"));
  }
  EXPECT_TRUE(client_->acquire(tensor_).has_value());
}

TEST_F(Reconnecting, DoesNotBelieveNonsense) {
  lose();
  shm::Resumed wrong;
  wrong.header.bytes = sizeof wrong;
  wrong.session = 43;
  daemon_.send(&wrong, sizeof wrong);
  EXPECT_EQ(client_->mark_step().error().code, ErrorCode::kInternal);
}

TEST_F(Reconnecting, NeedsEmptyRings) {
  Pending<void> moving = client_->swap_out_async(set_);
  lose();
  daemon_.region().submission_index->head = 0u - shm::kRingEntries;
  shm::Resumed message;
  message.header.bytes = sizeof message;
  message.session = 42;
  daemon_.send(&message, sizeof message);
  EXPECT_EQ(moving.wait(60s).error().code, ErrorCode::kInternal);
}

TEST_F(Reconnecting, DoesNotFollowADaemonThatSaidGoodbye) {
  daemon_.retire_segment(shm::kPlaceHost, 0);
  EXPECT_TRUE(eventually([&] { return daemon_.has_message(); }));  // it dies without having read this
  daemon_.refuse_to_resume(ErrorCode::kUnavailable, "terraced stops");
  EXPECT_THAT(client_->swap_out(set_).error().message, HasSubstr("terraced stops"));
}

TEST_F(Reconnecting, EndsWithTheClient) {
  daemon_.die();
  Pending<void> moving = client_->swap_out_async(set_);
  auto waiting = beside([&] { return client_->swap_out(set_); });
  client_->close();
  EXPECT_THAT(moving.wait(60s).error().message, HasSubstr("the client is closed"));
  EXPECT_THAT(waiting.get().error().message, HasSubstr("the client is closed"));
}

TEST_F(Reconnecting, TellsADaemonThatIsBackOfTheEnd) {
  lose();
  client_.reset();
  EXPECT_EQ(daemon_.receive().size(), sizeof(shm::Bye));
  EXPECT_TRUE(daemon_.receive().empty());
}

TEST_F(Reconnecting, TellsADaemonOfTheEndThatItHasNotFoundYet) {
  daemon_.die();
  EXPECT_EQ(client_->swap_out(set_, Place::block(), 1ms).error().code, ErrorCode::kDeadlineExceeded);
  daemon_.listen();
  client_.reset();  // most likely between two attempts
  EXPECT_EQ(daemon_.accept_resume().session, 42u);
  EXPECT_EQ(daemon_.receive().size(), sizeof(shm::Bye));
  EXPECT_TRUE(daemon_.receive().empty());
}

TEST_F(Reconnecting, EndsWithTheLastLease) {
  daemon_.publish(3, {.state = shm::State::kResident}, 0);
  std::optional<Lease> lease = std::move(*client_->acquire(tensor_));
  client_->close();
  lose();
  daemon_.resume();  // for the lease's sake
  lease.reset();
  EXPECT_EQ(daemon_.receive().size(), sizeof(shm::Bye));
  EXPECT_FALSE(daemon_.word(3).leased());
}

TEST_F(Reconnecting, LeavesAForkedChildNothing) {
  lose();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char end = 0;
    ::close(ends[1]);
    const Result<void> refused = client_->swap_out(set_);
    if (::read(ends[0], &end, 1) != 0) ::_exit(2);  // lives until the parent has looked
    ::_exit(refused ? 1 : static_cast<int>(refused.error().code));
  }
  client_.reset();
  EXPECT_EQ(daemon_.receive().size(), sizeof(shm::Bye));
  EXPECT_TRUE(daemon_.receive().empty()) << "the child holds the connection open";
  ::close(ends[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  ::close(ends[0]);
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ErrorCode::kFailedPrecondition));
}

TEST(ReconnectingInVain, EndsInTime) {
  ScriptedDaemon daemon;
  Client client = daemon.open({.reconnect_timeout = 20ms});
  const Tensor tensor = daemon.create(client, "weights", 4096, 3);
  Pending<void> moving = client.swap_out_async({&tensor, 1});
  auto waiting = beside([&] { return client.swap_out({&tensor, 1}); });
  daemon.next();
  daemon.next();
  daemon.die();
  for (const Error& error : {moving.wait(60s).error(), waiting.get().error(), client.mark_step().error()}) {
    EXPECT_EQ(error.code, ErrorCode::kUnavailable);
    EXPECT_THAT(error.message, HasSubstr("has not come back within reconnect_timeout"));
    EXPECT_THAT(error.message, HasSubstr("no terraced at " + daemon.path()));
  }
}

TEST(ReconnectingInVain, EndsInTimeWithASilentDaemonToo) {
  ScriptedDaemon daemon;
  Client client = daemon.open({.reconnect_timeout = 20ms});
  daemon.hang_up();  // and the next one listens, and says nothing
  EXPECT_THAT(client.mark_step().error().message, HasSubstr("accepted the connection and did not answer"));
}

}  // namespace
}  // namespace terrace::client
