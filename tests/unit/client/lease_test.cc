// SPDX-License-Identifier: Apache-2.0
// Shows leases: taken in the table without the daemon where the copy is there, through it otherwise; what each gives
// access to; and that every one is given back exactly once, from wherever it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <thread>

#include "unit/client/scripted_daemon.h"

namespace terrace::client {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr shm::Word kResident{.state = shm::State::kResident};

// Whether a byte at the address can be written (or read, if it is only to be looked at): asked of the kernel.
bool accessible(const std::byte* address, bool to_write) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const std::byte* source = to_write ? reinterpret_cast<const std::byte*>("x") : address;
  bool done = ::write(ends[1], source, 1) == 1;
  if (to_write) done = ::read(ends[0], const_cast<std::byte*>(address), 1) == 1;
  ::close(ends[0]);
  ::close(ends[1]);
  return done;
}

class Leases : public testing::Test {
 protected:
  Leases() : client_(daemon_.open()), tensor_(daemon_.create(client_, "weights", 4096, 3)) {
    memory_ = daemon_.pass_segment(shm::kPlaceHost, 0);
  }

  ScriptedDaemon daemon_;
  Client client_;
  Tensor tensor_;
  std::byte* memory_ = nullptr;
};

TEST_F(Leases, OfWhatIsThereAskNobody) {
  daemon_.publish(3, kResident, 8192);
  memory_[8192] = std::byte{7};
  while (daemon_.rung()) {
  }
  Result<Lease> lease = client_.acquire(tensor_);
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  EXPECT_EQ(lease->bytes().size(), 4096u);
  EXPECT_EQ(lease->bytes()[0], std::byte{7});
  EXPECT_EQ(lease->span<const std::uint8_t>()[0], 7);
  EXPECT_EQ(daemon_.word(3).readers, 1u);
  EXPECT_FALSE(daemon_.rung());
  EXPECT_EQ(client_.held(), 1u);
  EXPECT_TRUE(lease->release().has_value());
  EXPECT_EQ(daemon_.word(3).readers, 0u);
  EXPECT_EQ(client_.held(), 0u);
  EXPECT_TRUE(lease->bytes().empty());
}

TEST_F(Leases, InPassingAreNotLogged) {
  daemon_.publish(3, kResident, 0);
  const auto logged = [&] {
    std::uint64_t entries = 0;
    for (std::uint32_t log = 0; log < shm::kLogCount; ++log) entries += daemon_.region().log_index(log).tail.load();
    return entries;
  };
  EXPECT_TRUE(client_.acquire(tensor_, {.passing = true}));
  EXPECT_TRUE(client_.acquire(std::span(&tensor_, 1), {.passing = true}));
  EXPECT_EQ(logged(), 0u);
  const LeaseOptions writes{.mode = Mode::kWrite, .passing = true};
  EXPECT_EQ(client_.acquire(tensor_, writes).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(client_.acquire(std::span(&tensor_, 1), writes).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(client_.acquire(tensor_));
  EXPECT_TRUE(client_.acquire(std::span(&tensor_, 1)));
  EXPECT_EQ(logged(), 2u);
}

TEST_F(Leases, ToReadCannotBeWrittenThrough) {
  daemon_.publish(3, kResident, 0);
  const Result<Lease> read = client_.acquire(tensor_);
  EXPECT_TRUE(accessible(read->bytes().data(), false));
  EXPECT_FALSE(accessible(read->bytes().data(), true));
  EXPECT_TRUE(read->writable_bytes().empty());
  EXPECT_TRUE(read->span<std::uint8_t>().empty());
  const Result<Lease> view = client_.acquire(tensor_, {.writable_view = true});
  EXPECT_TRUE(accessible(view->bytes().data(), true));
  EXPECT_EQ(view->writable_bytes().size(), 4096u);
  EXPECT_FALSE(daemon_.word(3).dirty);
  const Result<Lease> write = client_.acquire(tensor_, {.mode = Mode::kWrite});
  EXPECT_EQ(write->bytes().data(), view->bytes().data());
  EXPECT_TRUE(daemon_.word(3).dirty);
  write->span<std::uint8_t>()[5] = 99;
  EXPECT_EQ(memory_[5], std::byte{99});
  EXPECT_EQ(read->bytes()[5], std::byte{99});
  EXPECT_TRUE(write->span<float>().empty()) << "the tensor is of bytes, not of floats";
}

TEST_F(Leases, OnADeviceAreMappedOnce) {
  daemon_.pass_segment(shm::kPlaceDevice0, kSegmentBytes);
  daemon_.publish(3, kResident, kSegmentBytes, shm::kPlaceDevice0);
  const Result<Lease> lease = client_.acquire(tensor_, {.place = Place::device(0)});
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  EXPECT_EQ(lease->place(), Place::device(0));
  EXPECT_TRUE(accessible(lease->bytes().data(), true));
}

TEST_F(Leases, OfWhatIsElsewhereGoThroughTheDaemon) {
  for (const shm::Word absent : {shm::Word{.state = shm::State::kAbsent}, shm::Word{.state = shm::State::kClaimed},
                                 shm::Word{.state = shm::State::kResident, .wanted = true},
                                 shm::Word{.state = shm::State::kResident, .lent = true}}) {
    daemon_.publish(3, absent, 0);
    auto acquiring = beside([&] { return client_.acquire(tensor_, {.mode = Mode::kOverwrite, .timeout = 5s}); });
    const Asked asked = daemon_.next();
    EXPECT_EQ(asked.submission.operation, shm::Operation::kAcquire);
    EXPECT_EQ(asked.modes, std::vector{shm::Mode::kOverwrite});
    EXPECT_EQ(asked.submission.place, shm::kPlaceHost);
    EXPECT_EQ(asked.submission.timeout_ns, 5'000'000'000u);
    EXPECT_EQ(asked.handles, std::vector{ScriptedDaemon::handle(3)});
    daemon_.publish(3, {.state = shm::State::kResident, .dirty = true, .writers = 1}, 0);
    daemon_.answer(asked);
    const Result<Lease> lease = acquiring.get();
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    EXPECT_EQ(daemon_.word(3).writers, 1u);
  }
  EXPECT_EQ(daemon_.word(3).writers, 0u);
}

TEST_F(Leases, OfWhatIsInAnotherPlaceGoThroughTheDaemon) {
  daemon_.publish(3, kResident, 0, shm::kPlaceDevice0);
  auto acquiring = beside([&] { return client_.acquire(tensor_); });
  const Asked asked = daemon_.next();
  EXPECT_EQ(daemon_.word(3).readers, 0u);
  daemon_.refuse(asked, ErrorCode::kFailedPrecondition, "leased on device:0");
  const Result<Lease> lease = acquiring.get();
  ASSERT_FALSE(lease.has_value());
  EXPECT_EQ(lease.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(lease.error().message, "leased on device:0");
}

TEST_F(Leases, WaitForTheirSegment) {
  daemon_.publish(3, kResident, kSegmentBytes);  // not passed yet
  auto acquiring = beside([&] { return client_.acquire(tensor_); });
  ASSERT_TRUE(eventually([&] { return daemon_.word(3).readers == 1; }));
  std::byte* second = daemon_.pass_segment(shm::kPlaceHost, kSegmentBytes);
  second[0] = std::byte{5};
  const Result<Lease> lease = acquiring.get();
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  EXPECT_EQ(lease->bytes()[0], std::byte{5});
}

TEST_F(Leases, WaitForTheirSegmentLongerThanToBeGranted) {
  daemon_.publish(3, kResident, kSegmentBytes);
  auto acquiring = beside([&] { return client_.acquire(tensor_, {.timeout = 0s}); });
  ASSERT_TRUE(eventually([&] { return daemon_.word(3).readers == 1; }));
  daemon_.pass_segment(shm::kPlaceHost, kSegmentBytes);
  const Result<Lease> lease = acquiring.get();
  EXPECT_TRUE(lease.has_value()) << lease.error().message;
}

TEST_F(Leases, WithoutTheirSegmentEndWithTheClient) {
  daemon_.publish(3, kResident, kSegmentBytes);
  auto acquiring = beside([&] { return client_.acquire(tensor_); });
  ASSERT_TRUE(eventually([&] { return daemon_.word(3).readers == 1; }));
  client_.close();
  EXPECT_EQ(acquiring.get().error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(daemon_.word(3).readers, 0u);
}

TEST_F(Leases, MayLieAcrossSegments) {
  std::byte* second = daemon_.pass_segment(shm::kPlaceHost, kSegmentBytes);
  daemon_.publish(3, kResident, kSegmentBytes - 2048);
  const Result<Lease> lease = client_.acquire(tensor_, {.mode = Mode::kWrite});
  ASSERT_TRUE(lease.has_value());
  std::ranges::fill(lease->writable_bytes(), std::byte{9});
  EXPECT_EQ(memory_[kSegmentBytes - 1], std::byte{9});
  EXPECT_EQ(second[2047], std::byte{9});
}

TEST_F(Leases, WithoutTheirSegmentAreGivenBackInTime) {
  daemon_.publish(3, kResident, kSegmentBytes);
  const Result<Lease> lease = client_.acquire(tensor_, {.timeout = 1ms});
  ASSERT_FALSE(lease.has_value());
  EXPECT_EQ(lease.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(daemon_.word(3).readers, 0u);
}

TEST_F(Leases, OutsideTheRangeAreNotBelieved) {
  daemon_.publish(3, kResident, kRangeBytes - 4095);
  const Result<Lease> lease = client_.acquire(tensor_);
  ASSERT_FALSE(lease.has_value());
  EXPECT_EQ(lease.error().code, ErrorCode::kInternal);
  EXPECT_EQ(daemon_.word(3).readers, 0u);
}

TEST_F(Leases, OfWhatWasDestroyedAreAborted) {
  daemon_.region().table[3].word = shm::Word{.state = shm::State::kResident, .incarnation = 2}.packed();
  EXPECT_EQ(client_.acquire(tensor_).error().code, ErrorCode::kAborted);
  EXPECT_EQ(client_.acquire(std::vector{tensor_}).error().code, ErrorCode::kAborted);
}

TEST_F(Leases, OfForeignTensorsAndPlacesAreRefusedHere) {
  EXPECT_EQ(client_.acquire(Tensor()).error().code, ErrorCode::kInvalidArgument);
  const Result<Lease> nowhere = client_.acquire(tensor_, {.place = Place::device(5)});
  EXPECT_EQ(nowhere.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(nowhere.error().message, HasSubstr("device:5"));
  EXPECT_THAT(nowhere.error().message, HasSubstr("host, device:0"));
  ScriptedDaemon other_daemon;
  Client other = other_daemon.open();
  EXPECT_EQ(other.acquire(tensor_).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(Leases, EndOnce) {
  daemon_.publish(3, kResident, 0);
  Result<Lease> lease = client_.acquire(tensor_);
  Lease moved = std::move(*lease);
  EXPECT_EQ(lease->release().error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(daemon_.word(3).readers, 1u);
  EXPECT_TRUE(moved.release().has_value());
  EXPECT_EQ(moved.release().error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(daemon_.word(3).readers, 0u);
  release_token(moved.detach());  // of nothing
  Result<Lease> other = client_.acquire(tensor_);
  moved = std::move(*other);
  const LeaseToken token = moved.detach();
  EXPECT_FALSE(static_cast<bool>(moved));
  EXPECT_EQ(daemon_.word(3).readers, 1u);
  release_token(token);
  EXPECT_EQ(daemon_.word(3).readers, 0u);
  EXPECT_EQ(client_.held(), 0u);
}

TEST_F(Leases, ThatSomebodyElseEndedAreNamed) {
  daemon_.publish(3, kResident, 0);
  Result<Lease> lease = client_.acquire(tensor_);
  daemon_.publish(3, kResident, 0);  // the count is gone
  EXPECT_EQ(lease->release().error().code, ErrorCode::kInternal);
}

TEST_F(Leases, ThatAreWantedRingAtTheLastRelease) {
  daemon_.publish(3, kResident, 0);
  Result<Lease> first = client_.acquire(tensor_);
  Result<Lease> second = client_.acquire(tensor_);
  while (daemon_.rung()) {
  }
  shm::want(daemon_.region().table[3].word, true);
  EXPECT_TRUE(first->release().has_value());
  EXPECT_FALSE(daemon_.rung());
  EXPECT_TRUE(second->release().has_value());
  EXPECT_TRUE(daemon_.rung());
}

TEST_F(Leases, OutliveTheClient) {
  daemon_.publish(3, kResident, 0);
  memory_[0] = std::byte{1};
  LeaseToken token;
  const std::byte* address = nullptr;
  {
    Result<Lease> lease = client_.acquire(tensor_);
    address = lease->bytes().data();
    token = lease->detach();
  }
  client_.close();
  EXPECT_FALSE(daemon_.has_message());
  EXPECT_EQ(*address, std::byte{1});
  std::thread([token] { release_token(token); }).join();
  EXPECT_EQ(daemon_.receive().size(), sizeof(shm::Bye));
  EXPECT_EQ(daemon_.word(3).readers, 0u);
}

TEST_F(Leases, AreLoggedByThread) {
  daemon_.publish(3, kResident, 0);
  std::vector<shm::LogEntry> entries(shm::kLogEntries);
  shm::LogReader reader(daemon_.region().log_index(0), daemon_.region().log_entries(0));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client_.acquire(tensor_).has_value());
  ASSERT_EQ(reader.drain(entries).entries, 3u);
  EXPECT_EQ(entries[2].slot, 3u);
  for (std::uint32_t i = 0; i < 2 * shm::kLogEntries; ++i) ASSERT_TRUE(client_.acquire(tensor_).has_value());
  const shm::LogReader::Drained drained = reader.drain(entries);
  EXPECT_EQ(drained.entries, shm::kLogEntries);
  EXPECT_EQ(drained.fast_leases, 2 * shm::kLogEntries);
}

TEST_F(Leases, OfThreadsWithoutALogAreCounted) {
  daemon_.publish(3, kResident, 0);
  constexpr std::uint32_t kMore = 6;
  std::barrier all(shm::kLogCount + kMore);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t i = 0; i < shm::kLogCount + kMore; ++i) {
      threads.emplace_back([&] {
        EXPECT_TRUE(client_.acquire(tensor_).has_value());
        all.arrive_and_wait();  // so that none gives its log back before all had theirs
      });
    }
  }
  EXPECT_EQ(daemon_.region().header->unlogged.load(), kMore);
  for (std::uint32_t log = 0; log < shm::kLogCount; ++log) EXPECT_EQ(daemon_.region().log_index(log).lent.load(), 0u);
  EXPECT_EQ(daemon_.word(3).readers, 0u);
}

TEST_F(Leases, GoAwayWithTheSegmentThatIsRetired) {
  daemon_.publish(3, kResident, 0);
  const std::byte* address = client_.acquire(tensor_)->bytes().data();
  daemon_.publish(3, {.state = shm::State::kAbsent}, 0);
  daemon_.retire_segment(shm::kPlaceHost, 0);
  const std::vector<std::byte> answer = daemon_.receive();
  ASSERT_EQ(answer.size(), sizeof(shm::SegmentMessage));
  shm::SegmentMessage retired;
  std::memcpy(static_cast<void*>(&retired), answer.data(), sizeof retired);
  EXPECT_EQ(retired.header.type, shm::MessageType::kRetired);
  EXPECT_FALSE(accessible(address, false));
}

TEST_F(Leases, OnlyAnOverwriteThatIsAbandonedTears) {
  while (daemon_.rung()) {  // for what was asked before
  }
  for (const Mode mode : {Mode::kRead, Mode::kWrite, Mode::kOverwrite}) {
    daemon_.publish(3, kResident, 0);
    Lease lease = client_.acquire(tensor_, {.mode = mode}).value();
    EXPECT_TRUE(lease.abandon().has_value());
    EXPECT_EQ(daemon_.word(3).torn, mode == Mode::kOverwrite);
    EXPECT_FALSE(daemon_.word(3).leased());
    EXPECT_TRUE(lease.bytes().empty());
    EXPECT_EQ(lease.abandon().error().code, ErrorCode::kFailedPrecondition) << "it is over";
  }
  EXPECT_FALSE(daemon_.rung()) << "nobody is asked, so nobody need be there";
  auto acquiring = beside([&] { return client_.acquire(tensor_); });
  daemon_.refuse(daemon_.next(), ErrorCode::kFailedPrecondition, "tensor 'weights' is torn");
  EXPECT_THAT(acquiring.get().error().message, HasSubstr("torn"));
}

TEST_F(Leases, WhoWaitsForATornTensorHearsOfItsRelease) {
  daemon_.publish(3, kResident, 0);
  Lease lease = client_.acquire(tensor_, {.mode = Mode::kOverwrite}).value();
  daemon_.publish(3, {.state = shm::State::kResident, .dirty = true, .wanted = true, .writers = 1}, 0);
  while (daemon_.rung()) {
  }
  ASSERT_TRUE(lease.abandon().has_value());
  EXPECT_TRUE(daemon_.rung());
  EXPECT_TRUE(daemon_.word(3).torn);
}

class Sets : public Leases {
 protected:
  Sets() : other_(daemon_.create(client_, "bias", 512, 1)) {}
  std::vector<Tensor> both() const { return {tensor_, other_}; }
  Tensor other_;
};

TEST_F(Sets, AreTakenInTheTableInTheOrderGiven) {
  daemon_.publish(3, kResident, 0);
  daemon_.publish(1, kResident, 4096);
  const Result<std::vector<Lease>> leases = client_.acquire(both(), {.mode = Mode::kWrite});
  ASSERT_TRUE(leases.has_value()) << leases.error().message;
  ASSERT_EQ(leases->size(), 2u);
  EXPECT_EQ((*leases)[0].tensor().name(), "weights");
  EXPECT_EQ((*leases)[1].bytes().size(), 512u);
  EXPECT_EQ(daemon_.word(1).writers, 1u);
}

TEST_F(Sets, NameEachTensorOnce) {
  daemon_.publish(3, kResident, 0);
  daemon_.publish(1, kResident, 4096);
  const std::vector<Tensor> twice = {tensor_, other_, tensor_};
  const auto leases = client_.acquire(twice);
  ASSERT_FALSE(leases.has_value());
  EXPECT_EQ(leases.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(leases.error().message, "tensor 'weights' is twice in the set: name it once");
  EXPECT_EQ(daemon_.word(3).readers, 0u);
}

TEST_F(Sets, AreGivenBackWholeAtTheFirstRefusal) {
  daemon_.publish(3, {.state = shm::State::kAbsent}, 0);
  daemon_.publish(1, kResident, 4096);
  auto acquiring = beside([&] { return client_.acquire(both()); });
  const Asked asked = daemon_.next();
  EXPECT_EQ(asked.handles, (std::vector{ScriptedDaemon::handle(3), ScriptedDaemon::handle(1)}));
  EXPECT_EQ(daemon_.word(1).readers, 0u);
  daemon_.publish(3, {.state = shm::State::kResident, .readers = 1}, 0);
  daemon_.publish(1, {.state = shm::State::kResident, .readers = 1}, 4096);
  daemon_.answer(asked);
  Result<std::vector<Lease>> leases = acquiring.get();
  ASSERT_TRUE(leases.has_value()) << leases.error().message;
  leases->clear();
  EXPECT_EQ(daemon_.word(1).readers, 0u);
  EXPECT_EQ(daemon_.word(3).readers, 0u);
}

TEST_F(Sets, AreLeasedEachInItsOwnMode) {
  daemon_.publish(3, kResident, 0);
  daemon_.publish(1, kResident, 4096);
  Result<std::vector<Lease>> leases = client_.acquire(both(), {.modes = {Mode::kWrite, Mode::kRead}});
  ASSERT_TRUE(leases.has_value()) << leases.error().message;
  EXPECT_EQ((*leases)[0].mode(), Mode::kWrite);
  EXPECT_EQ((*leases)[1].mode(), Mode::kRead);
  EXPECT_FALSE((*leases)[0].writable_bytes().empty());
  EXPECT_TRUE((*leases)[1].writable_bytes().empty());
  EXPECT_TRUE(daemon_.word(3).writers == 1 && daemon_.word(3).readers == 0);
  EXPECT_TRUE(daemon_.word(1).writers == 0 && daemon_.word(1).readers == 1);
  leases->clear();
  EXPECT_FALSE(daemon_.word(3).leased() || daemon_.word(1).leased());
}

TEST_F(Sets, GoToTheDaemonEachInItsOwnMode) {
  daemon_.publish(3, {.state = shm::State::kAbsent}, 0);
  daemon_.publish(1, kResident, 4096);
  {
    const auto dropped = client_.acquire_async(both(), {.modes = {Mode::kOverwrite, Mode::kRead}});
    const Asked asked = daemon_.next();
    EXPECT_EQ(asked.modes, (std::vector{shm::Mode::kOverwrite, shm::Mode::kRead}));
    EXPECT_EQ(daemon_.word(1).readers, 0u) << "what was taken is given back";
    daemon_.publish(3, {.state = shm::State::kResident, .dirty = true, .writers = 1}, 0);
    daemon_.publish(1, {.state = shm::State::kResident, .readers = 1}, 4096);
    daemon_.answer(asked);
  }
  EXPECT_TRUE(eventually([&] { return !daemon_.word(3).leased() && !daemon_.word(1).leased(); }));
  EXPECT_TRUE(daemon_.word(3).torn) << "nobody overwrote it";
  EXPECT_FALSE(daemon_.word(1).torn);
}

TEST_F(Sets, HaveAsManyModesAsTensors) {
  daemon_.publish(3, kResident, 0);
  const auto leases = client_.acquire(both(), {.modes = {Mode::kRead}});
  EXPECT_EQ(leases.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(leases.error().message, "1 modes for 2 tensors: give one for all of them, or one for each");
  const auto one = client_.acquire(tensor_, {.modes = {Mode::kRead, Mode::kRead}});
  EXPECT_EQ(one.error().code, ErrorCode::kInvalidArgument);
  const auto passing = client_.acquire(both(), {.passing = true, .modes = {Mode::kRead, Mode::kWrite}});
  EXPECT_EQ(passing.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(daemon_.word(3).leased());
}

TEST_F(Sets, ThatCannotBeUsedAreGivenBackWhole) {
  daemon_.publish(3, kResident, 0);
  daemon_.publish(1, kResident, kRangeBytes);
  EXPECT_EQ(client_.acquire(both()).error().code, ErrorCode::kInternal);
  EXPECT_EQ(daemon_.word(1).readers, 0u);
  EXPECT_EQ(daemon_.word(3).readers, 0u);
}

}  // namespace
}  // namespace terrace::client
