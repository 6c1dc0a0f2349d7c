// SPDX-License-Identifier: Apache-2.0
// Shows requests through the rings: many at once, answered out of order, given up, more than fit; a daemon that ends or
// answers nonsense; and that nothing granted to nobody stays granted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "unit/client/scripted_daemon.h"

namespace terrace::client {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

class Calling : public testing::Test {
 protected:
  Calling() : client_(daemon_.open()), tensor_(daemon_.create(client_, "weights", 4096, 3)) {
    daemon_.pass_segment(shm::kPlaceHost, 0);
  }
  ScriptedDaemon daemon_;
  Client client_;
  Tensor tensor_;
};

TEST_F(Calling, AsksForEachOperation) {
  const std::span<const Tensor> set(&tensor_, 1);
  const auto asked = [&](auto call) {
    auto calling = beside(call);
    const Asked got = daemon_.next();
    daemon_.answer(got);
    EXPECT_TRUE(calling.get().has_value());
    return got.submission;
  };
  EXPECT_EQ(asked([&] { return client_.swap_in(set, Place::device(0)); }).operation, shm::Operation::kMove);
  EXPECT_EQ(asked([&] { return client_.swap_out(set); }).place, shm::kPlaceBlock);
  EXPECT_EQ(asked([&] { return client_.prefetch(set); }).operation, shm::Operation::kPrefetch);
  EXPECT_EQ(asked([&] { return client_.evict(set); }).operation, shm::Operation::kEvict);
  EXPECT_EQ(asked([&] { return client_.dont_need(set); }).operation, shm::Operation::kDontNeed);
  EXPECT_EQ(asked([&] { return client_.pin(set); }).operation, shm::Operation::kPin);
  EXPECT_EQ(asked([&] { return client_.unpin(set); }).operation, shm::Operation::kUnpin);
  EXPECT_EQ(asked([&] { return client_.destroy(set); }).operation, shm::Operation::kDelete);
  EXPECT_EQ(asked([&] { return client_.prefetch_async(set).wait(60s); }).operation, shm::Operation::kPrefetch);
  EXPECT_EQ(asked([&] { return client_.evict_async(set).wait(60s); }).operation, shm::Operation::kEvict);
  EXPECT_EQ(asked([&] { return client_.dont_need_async(set).wait(60s); }).operation, shm::Operation::kDontNeed);
  const shm::Submission step = asked([&] { return client_.mark_step(StepKind::kEval); });
  EXPECT_EQ(step.operation, shm::Operation::kMarkStep);
  EXPECT_EQ(step.value, 2u);
  EXPECT_EQ(step.count, 0u);
  EXPECT_GE(step.block_bytes, shm::kBlockBytesMin);
  const DeclaredSet declared{{set.begin(), set.end()}, Place::device(0), Mode::kOverwrite, std::chrono::seconds(2)};
  const shm::Submission first = asked([&] { return client_.declare_step({&declared, 1}, StepKind::kEval); });
  EXPECT_EQ(first.operation, shm::Operation::kDeclareStep);
  EXPECT_EQ(first.mode, 2u);
  EXPECT_EQ(first.place, shm::kPlaceDevice0);
  EXPECT_EQ(first.value, (shm::DeclaredValue{.kind = 2, .position = 0, .compute_us = 2'000'000}.packed()));
}

TEST_F(Calling, MayBeAnsweredInAnyOrder) {
  const std::span<const Tensor> set(&tensor_, 1);
  Pending<void> first = client_.swap_out_async(set);
  Pending<void> second = client_.swap_in_async(set, Place::host());
  const Asked one = daemon_.next();
  const Asked two = daemon_.next();
  EXPECT_FALSE(first.ready());
  EXPECT_EQ(second.wait(0s).error().code, ErrorCode::kDeadlineExceeded);
  daemon_.refuse(two, ErrorCode::kDataLoss, "gone");
  EXPECT_TRUE(second.ready());
  EXPECT_FALSE(first.ready());
  const Result<void> lost = second.wait(60s);
  EXPECT_EQ(lost.error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(second.wait(0s).error().code, ErrorCode::kFailedPrecondition);
  daemon_.answer(one);
  EXPECT_TRUE(first.wait(60s).has_value());
}

TEST_F(Calling, BringsLeasesLater) {
  Pending<std::vector<Lease>> pending = client_.acquire_async({&tensor_, 1});
  const Asked asked = daemon_.next();
  EXPECT_FALSE(pending.ready());
  daemon_.publish(3, {.state = shm::State::kResident, .readers = 1}, 0);
  daemon_.answer(asked);
  const Result<std::vector<Lease>> leases = pending.wait(60s);
  ASSERT_TRUE(leases.has_value()) << leases.error().message;
  Pending<std::vector<Lease>> hit = client_.acquire_async({&tensor_, 1});
  EXPECT_TRUE(hit.ready());
  EXPECT_TRUE(hit.wait(0s).has_value());
  EXPECT_FALSE(hit.wait(0s).has_value());
}

TEST_F(Calling, GivesBackWhatNobodyWaitsFor) {
  {
    const Pending<std::vector<Lease>> dropped = client_.acquire_async({&tensor_, 1});
  }
  const Asked asked = daemon_.next();
  daemon_.publish(3, {.state = shm::State::kResident, .readers = 1}, 0);
  daemon_.answer(asked);
  EXPECT_TRUE(eventually([&] { return daemon_.word(3).readers == 0; }));
}

TEST_F(Calling, TearsAnOverwriteThatNobodyWaitsFor) {
  {
    const auto dropped = client_.acquire_async({&tensor_, 1}, {.mode = Mode::kOverwrite});
  }
  const Asked asked = daemon_.next();
  daemon_.publish(3, {.state = shm::State::kResident, .dirty = true, .writers = 1}, 0);
  daemon_.answer(asked);
  EXPECT_TRUE(eventually([&] { return daemon_.word(3).writers == 0; }));
  EXPECT_TRUE(daemon_.word(3).torn) << "the old bytes went for it";
}

// What was granted to nobody is torn: not under the hands of who overwrites it after that, nor after they have read it.
TEST_F(Calling, LeasesNothingOfWhichAnOverwriteWasGivenUpBeforeThatIsSettled) {
  {
    const auto dropped = client_.acquire_async({&tensor_, 1}, {.mode = Mode::kOverwrite});
  }
  const Asked first = daemon_.next();
  daemon_.publish(3, {.state = shm::State::kResident, .dirty = true, .writers = 1}, 0);
  Pending<std::vector<Lease>> second = client_.acquire_async({&tensor_, 1}, {.mode = Mode::kOverwrite});
  EXPECT_FALSE(second.ready());
  EXPECT_FALSE(second.ready(1ms));
  const Result<Lease> read = client_.acquire(tensor_, {.timeout = 1ms});
  ASSERT_FALSE(read.has_value()) << "it is in the table, and holds nothing";
  EXPECT_EQ(read.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(read.error().message, HasSubstr("was given up before it was granted, and may yet be"));
  EXPECT_EQ(client_.acquire({&tensor_, 1}, {.timeout = 1ms}).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(daemon_.word(3).writers, 1u);

  daemon_.answer(first);
  EXPECT_FALSE(second.ready()) << "torn now, and so a matter of the daemon's";
  EXPECT_TRUE(daemon_.word(3).torn);
  const Asked again = daemon_.next();
  daemon_.publish(3, {.state = shm::State::kResident, .dirty = true, .writers = 1}, 0);
  daemon_.answer(again);
  Result<std::vector<Lease>> leases = second.wait(60s);
  ASSERT_TRUE(leases.has_value()) << leases.error().message;
  leases->clear();
  EXPECT_FALSE(daemon_.word(3).torn) << "it was overwritten";
  EXPECT_TRUE(client_.acquire(tensor_, {.timeout = 1ms}).has_value());
}

TEST_F(Calling, EndsInTimeWhereAnOverwriteThatWasGivenUpIsNot) {
  {
    const auto dropped = client_.acquire_async({&tensor_, 1}, {.mode = Mode::kOverwrite});
  }
  const Asked first = daemon_.next();
  Pending<std::vector<Lease>> second = client_.acquire_async({&tensor_, 1}, {.timeout = 5ms});
  ASSERT_TRUE(second.ready(60s)) << "its time is over";
  EXPECT_EQ(second.wait({}).error().code, ErrorCode::kDeadlineExceeded);
  {
    const auto never_asked = client_.acquire_async({&tensor_, 1});
  }
  daemon_.refuse(first, ErrorCode::kResourceExhausted, "full");
  daemon_.publish(3, {.state = shm::State::kResident}, 0);
  EXPECT_TRUE(client_.acquire(tensor_).has_value());
}

TEST_F(Calling, GivesUpOnADaemonThatIsSilent) {
  const Result<Lease> lease = client_.acquire(tensor_, {.timeout = 1ms});
  ASSERT_FALSE(lease.has_value());
  EXPECT_EQ(lease.error().code, ErrorCode::kDeadlineExceeded);
  daemon_.publish(3, {.state = shm::State::kResident, .readers = 1}, 0);
  daemon_.answer(daemon_.next());
  EXPECT_TRUE(eventually([&] { return daemon_.word(3).readers == 0; }));
}

TEST_F(Calling, GivesUpLaterOnADaemonThatIsSilent) {
  Pending<void> pending = client_.swap_out_async({&tensor_, 1}, Place::block(), 1ms);
  ASSERT_TRUE(pending.ready(60s)) << "still waiting";
  const Result<void> answer = pending.wait(0s);
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(answer.error().message, HasSubstr("terraced has not answered in time"));
}

TEST_F(Calling, WaitsWithoutTaking) {
  Pending<void> pending = client_.swap_out_async({&tensor_, 1});
  EXPECT_FALSE(pending.ready(1ms));
  daemon_.refuse(daemon_.next(), ErrorCode::kDeadlineExceeded, "the disk was slow");
  EXPECT_TRUE(pending.ready(60s));
  EXPECT_TRUE(pending.ready());
  EXPECT_EQ(pending.wait(0s).error().message, "the disk was slow");
}

// The library gives back what comes for a call that the client's end cut short.
TEST_F(Calling, EndsWhenAnotherThreadCloses) {
  auto waiting = beside([&] { return client_.acquire(tensor_, {.mode = Mode::kWrite}); });
  const Asked asked = daemon_.next();
  Pending<void> pending = client_.swap_out_async({&tensor_, 1});
  client_.close();
  for (const Error& error : {waiting.get().error(), pending.wait(60s).error(), client_.mark_step().error()}) {
    EXPECT_EQ(error.code, ErrorCode::kFailedPrecondition);
    EXPECT_THAT(error.message, HasSubstr("the client is closed"));
  }
  daemon_.publish(3, {.state = shm::State::kResident, .writers = 1}, 0);
  daemon_.answer(asked);
  EXPECT_TRUE(eventually([&] { return daemon_.word(3).writers == 0; }));
}

TEST_F(Calling, MayMeetTheClientsEnd) {
  for (int round = 0; round < 20; ++round) {
    ScriptedDaemon daemon;
    Client client = daemon.open();
    std::vector<std::jthread> callers;
    std::atomic<int> started = 0;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([&] {
        do ++started;
        while (client.swap_in({}, Place::host(), 0s).error().code != ErrorCode::kFailedPrecondition);
      });
    }
    ASSERT_TRUE(eventually([&] { return started >= 4; }));
    client.close();
    client.close();
  }
}

TEST_F(Calling, DestroysWhatItCreatedForNobody) {
  auto creating = beside([&] { return client_.create({.name = "late", .bytes = 8}, 1ms); });
  const Asked asked = daemon_.next();
  EXPECT_EQ(creating.get().error().code, ErrorCode::kDeadlineExceeded);
  daemon_.answer(asked, {ScriptedDaemon::handle(5)});
  const Asked undo = daemon_.next();
  EXPECT_EQ(undo.submission.operation, shm::Operation::kDelete);
  EXPECT_EQ(undo.handles, std::vector{ScriptedDaemon::handle(5)});
}

TEST_F(Calling, RefusesMoreThanTheRingsHold) {
  std::vector<Pending<void>> pending;
  for (std::uint32_t i = 0; i < shm::kRingEntries; ++i) pending.push_back(client_.swap_out_async({&tensor_, 1}));
  const Result<void> full = client_.swap_out({&tensor_, 1}, Place::block(), 1ms);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, ErrorCode::kResourceExhausted);
  auto waiting = beside([&] { return client_.swap_out({&tensor_, 1}, Place::block(), 60s); });
  for (std::uint32_t i = 0; i < shm::kRingEntries + 1; ++i) daemon_.answer(daemon_.next());
  EXPECT_TRUE(waiting.get().has_value());
  for (Pending<void>& each : pending) EXPECT_TRUE(each.wait(60s).has_value());
}

TEST(CallingWithoutReconnecting, EndsWithTheDaemon) {
  ScriptedDaemon daemon;
  Client client = daemon.open({.reconnect_timeout = 0s});
  const Tensor tensor = daemon.create(client, "weights", 4096, 3);
  daemon.pass_segment(shm::kPlaceHost, 0);
  Pending<std::vector<Lease>> pending = client.acquire_async({&tensor, 1});
  auto waiting = beside([&] { return client.swap_out({&tensor, 1}); });
  daemon.next();
  daemon.next();
  daemon.hang_up();
  EXPECT_EQ(waiting.get().error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(pending.wait(60s).error().code, ErrorCode::kUnavailable);
  const Result<void> later = client.mark_step();
  EXPECT_EQ(later.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(later.error().message, HasSubstr("closed the connection"));
  daemon.publish(3, {.state = shm::State::kResident}, 0);
  const Result<Lease> hit = client.acquire(tensor);  // what is mapped stays usable
  EXPECT_TRUE(hit.has_value());
}

TEST_F(Calling, PassesOnWhyTheSessionEnded) {
  shm::Refused refused;
  refused.header.bytes = sizeof refused;
  refused.code = static_cast<std::uint32_t>(ErrorCode::kUnavailable);
  std::strcpy(refused.message.data(), "terraced stops");
  daemon_.send(&refused, sizeof refused);
  EXPECT_TRUE(eventually([&] { return !client_.mark_step(StepKind::kTrain).has_value(); }));
  EXPECT_THAT(client_.mark_step().error().message, HasSubstr("terraced stops"));
}

TEST_F(Calling, DoesNotBelieveNonsense) {
  auto waiting = beside([&] { return client_.mark_step(); });
  daemon_.next();
  daemon_.complete({.id = 987, .code = 0, .message_bytes = 0});
  const Result<void> answer = waiting.get();
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::kInternal);
  EXPECT_THAT(answer.error().message, HasSubstr("987"));
}

TEST_F(Calling, DoesNotBelieveAnImpossibleTail) {
  auto waiting = beside([&] { return client_.mark_step(); });
  daemon_.next();
  daemon_.region().completion_index->tail = 5000;
  shm::futex_wake(daemon_.region().completion_index->tail);
  EXPECT_FALSE(waiting.get().has_value());
}

TEST_F(Calling, BoundsAnErrorsText) {
  auto waiting = beside([&] { return client_.mark_step(); });
  const Asked asked = daemon_.next();
  daemon_.complete({.id = asked.submission.id, .code = 12345, .message_bytes = 0xFFFFFFFF});
  const Result<void> answer = waiting.get();
  EXPECT_EQ(answer.error().code, ErrorCode::kInternal);
  EXPECT_EQ(answer.error().message.size(), asked.submission.block_bytes);
}

TEST_F(Calling, SplitsLargeCreates) {
  std::vector<TensorSpec> specs;
  for (std::uint32_t i = 0; i < shm::kCreateMax + 1; ++i) specs.push_back({.name = std::to_string(i), .bytes = 1});
  auto creating = beside([&] { return client_.create(specs); });
  const Asked first = daemon_.next();
  ASSERT_EQ(first.records.size(), shm::kCreateMax);
  EXPECT_EQ(std::string(first.records[7].name.data()), "7");
  std::vector<std::uint64_t> handles;
  for (std::uint32_t i = 0; i < shm::kCreateMax; ++i) handles.push_back(ScriptedDaemon::handle(i % 16));
  daemon_.answer(first, handles);
  const Asked second = daemon_.next();
  EXPECT_EQ(second.records.size(), 1u);
  daemon_.refuse(second, ErrorCode::kResourceExhausted, "full");
  const Asked undo = daemon_.next();
  EXPECT_EQ(undo.submission.operation, shm::Operation::kDelete);
  EXPECT_EQ(undo.handles.size(), shm::kCreateMax);
  daemon_.answer(undo);
  EXPECT_EQ(creating.get().error().message, "full");
}

TEST_F(Calling, FromManyThreadsGetsEachItsOwnAnswer) {
  constexpr int kThreads = 8;
  constexpr int kEach = 200;
  std::vector<Tensor> tensors;
  for (std::uint32_t slot = 4; slot < 4 + kThreads; ++slot) {
    tensors.push_back(daemon_.create(client_, std::to_string(slot), 64, slot));
  }
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        const Tensor& own = tensors[static_cast<std::size_t>(thread)];
        for (int i = 0; i < kEach; ++i) {
          const Result<Lease> lease = client_.acquire(own);  // a miss: the daemon says which tensor was meant
          if (!lease && lease.error().message == own.name()) ++right;
        }
      });
    }
    for (int i = 0; i < kThreads * kEach; ++i) {
      const Asked asked = daemon_.next();
      daemon_.refuse(asked, ErrorCode::kFailedPrecondition, std::to_string(asked.handles[0] & 0xFFFF));
    }
  }
  EXPECT_EQ(right, kThreads * kEach);
}

TEST_F(Calling, AndLeasingFromManyThreadsCountsRight) {
  daemon_.publish(3, {.state = shm::State::kResident}, 0);
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 8; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 2000; ++i) {
          const Mode mode = (i + thread) % 2 == 0 ? Mode::kRead : Mode::kWrite;
          const Result<Lease> lease = client_.acquire(tensor_, {.mode = mode});
          ASSERT_TRUE(lease.has_value()) << lease.error().message;
        }
      });
    }
  }
  EXPECT_FALSE(daemon_.word(3).leased());
  EXPECT_TRUE(daemon_.word(3).dirty);
  EXPECT_EQ(client_.held(), 0u);
}

}  // namespace
}  // namespace terrace::client
