// SPDX-License-Identifier: Apache-2.0
// Shows that the ring tells of readiness as long as it lasts, never calls whoever has turned away, is bounded, and lets
// the devices go before what the CPU has to do.
#include "mover/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <thread>
#include <vector>

#include "base/fd.h"

namespace terrace::mover {
namespace {

// Counts its calls, and does what the test wants of it.
class Recorder final : public Completion {
 public:
  void completed(int result, bool more) override {
    ++calls;
    last = result;
    stands = more;
    if (then) then();
  }
  int calls = 0;
  int last = 0;
  bool stands = false;
  std::function<void()> then;
};

// What is left for later: counts its calls, and does what the test wants of it.
class Chore final : public Later {
 public:
  void run_later() override {
    ++calls;
    if (then) then();
  }
  int calls = 0;
  std::function<void()> then;
};

class RingTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = Ring::create({.entries = 8, .polls_max = 64, .io_max = 64});
    ASSERT_TRUE(made) << made.error().message;
    ring_ = std::move(*made);
  }
  static Fd event() { return Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }
  static void ring_bell(const Fd& fd) {
    const std::uint64_t one = 1;
    ASSERT_EQ(write(fd.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
  static void drain(const Fd& fd) {
    std::uint64_t count = 0;
    ASSERT_EQ(read(fd.get(), &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
  }
  std::size_t turn(Duration timeout = std::chrono::seconds(10)) {
    const auto count = ring_->run_once(timeout);
    EXPECT_TRUE(count) << count.error().message;
    return count.value_or(0);
  }
  // Rounds that do not wait, until there is nothing more to tell.
  void settle() {
    while (turn(Duration::zero()) > 0) {
    }
  }

  std::unique_ptr<Ring> ring_;
};

TEST_F(RingTest, ReturnsWhenNothingHappens) {
  EXPECT_EQ(turn(Duration::zero()), 0U);
  EXPECT_EQ(turn(std::chrono::milliseconds(1)), 0U);
}

TEST_F(RingTest, KnowsWithoutTheKernelWhetherThereIsWork) {
  const Fd fd = event();
  Recorder recorder;
  turn(Duration::zero());
  EXPECT_FALSE(ring_->has_work());
  const auto poll = ring_->poll(fd.get(), POLLIN, recorder);
  ASSERT_TRUE(poll);
  EXPECT_TRUE(ring_->has_work());  // to be submitted
  EXPECT_EQ(turn(Duration::zero()), 0u);
  EXPECT_FALSE(ring_->has_work());
  std::jthread([&] { ring_bell(fd); }).join();
  EXPECT_TRUE(ring_->has_work());
  EXPECT_EQ(turn(Duration::zero()), 1u);
  EXPECT_EQ(recorder.calls, 1);
  drain(fd);
  ring_->unpoll(*poll);
}

TEST_F(RingTest, TellsOfReadinessAgainAndAgainUntilItIsTakenAway) {
  const Fd bell = event();
  Recorder recorder;
  const auto poll = ring_->poll(bell.get(), POLLIN, recorder);
  ASSERT_TRUE(poll);
  EXPECT_EQ(turn(Duration::zero()), 0U);
  ring_bell(bell);
  for (int round = 1; round <= 3; ++round) {
    turn();
    EXPECT_EQ(recorder.calls, round);  // it was left unread, and so is told again
  }
  EXPECT_TRUE(recorder.last & POLLIN);
  EXPECT_TRUE(recorder.stands);
  drain(bell);
  settle();
  const int before = recorder.calls;
  EXPECT_EQ(turn(Duration::zero()), 0U);
  ring_bell(bell);
  turn();
  EXPECT_EQ(recorder.calls, before + 1);
}

TEST_F(RingTest, ABellOfAnotherThreadEndsTheWait) {
  const Fd bell = event();
  Recorder recorder;
  ASSERT_TRUE(ring_->poll(bell.get(), POLLIN, recorder));
  std::jthread other([&] { ring_bell(bell); });
  while (recorder.calls == 0) turn(Duration::max());
}

TEST_F(RingTest, WhoeverTurnedAwayIsNotCalled) {
  const Fd bell = event();
  auto recorder = std::make_unique<Recorder>();
  const auto poll = ring_->poll(bell.get(), POLLIN, *recorder);
  settle();
  ring_bell(bell);
  ring_->unpoll(*poll);
  recorder.reset();  // a call would be of freed memory
  settle();
  turn(std::chrono::milliseconds(1));
  settle();
  ring_->unpoll(*poll);  // taken back twice: nothing
}

TEST_F(RingTest, ARingDescriptorThatIsReadyInTheSameRoundIsTakenBackInTime) {
  const Fd first = event();
  const Fd second = event();
  Recorder one;
  Recorder other;
  const auto poll_one = ring_->poll(first.get(), POLLIN, one);
  const auto poll_other = ring_->poll(second.get(), POLLIN, other);
  one.then = [&] { ring_->unpoll(*poll_other); };
  other.then = [&] { ring_->unpoll(*poll_one); };
  ring_bell(first);
  ring_bell(second);
  for (int round = 0; round < 10; ++round) turn();
  // Whichever came first silenced the other; it alone goes on being told.
  EXPECT_NE(one.calls > 0, other.calls > 0);
}

TEST_F(RingTest, ACallMayEndItsOwnPollAndBeginAnother) {
  const Fd bell = event();
  Recorder second;
  Recorder first;
  auto poll = ring_->poll(bell.get(), POLLIN, first);
  Result<PollId> next;
  first.then = [&] {
    ring_->unpoll(*poll);
    next = ring_->poll(bell.get(), POLLIN, second);
  };
  ring_bell(bell);
  while (second.calls == 0) turn();
  EXPECT_EQ(first.calls, 1);
  ring_->unpoll(*next);
}

TEST_F(RingTest, ReportsTheOtherEndsClose) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const Fd here(ends[0]);
  Fd there(ends[1]);
  Recorder recorder;
  ASSERT_TRUE(ring_->poll(here.get(), POLLIN, recorder));
  settle();
  there.reset();
  turn();
  EXPECT_TRUE(recorder.last & POLLHUP);
}

TEST_F(RingTest, AWrongDescriptorEndsThePollWithItsErrno) {
  Recorder recorder;
  ASSERT_TRUE(ring_->poll(1'000'000, POLLIN, recorder));
  turn();
  EXPECT_EQ(recorder.last, -EBADF);
  EXPECT_FALSE(recorder.stands);
  settle();
  EXPECT_EQ(recorder.calls, 1);
}

TEST_F(RingTest, PollsAreBoundedAndTheirPlacesComeBack) {
  const Fd bell = event();
  Recorder recorder;
  for (int round = 0; round < 3; ++round) {
    std::vector<PollId> polls;
    for (int index = 0; index < 64; ++index) {
      auto poll = ring_->poll(bell.get(), POLLIN, recorder);  // more than the queue's 8 entries
      ASSERT_TRUE(poll) << poll.error().message;
      polls.push_back(*poll);
    }
    const auto refused = ring_->poll(bell.get(), POLLIN, recorder);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
    for (const PollId poll : polls) ring_->unpoll(poll);
    settle();
  }
  EXPECT_EQ(recorder.calls, 0);
}

TEST_F(RingTest, ReadsAndWritesFilesBeyondTheQueuesLength) {
  const Fd file(memfd_create("ring-test", MFD_CLOEXEC));
  const std::array<int, 1> files = {file.get()};
  ring_->set_files(files);
  constexpr std::size_t kParts = 50;
  std::array<Recorder, kParts> recorders;
  std::vector<std::array<std::byte, 512>> parts(kParts);
  for (std::size_t index = 0; index < kParts; ++index) {
    parts[index].fill(static_cast<std::byte>(index));
    ring_->write(0, parts[index], index * 512, recorders[index]);
  }
  while (ring_->io_in_flight() > 0) turn();
  for (auto& part : parts) part.fill(std::byte{0});
  for (std::size_t index = 0; index < kParts; ++index) ring_->read(0, parts[index], index * 512, recorders[index]);
  while (ring_->io_in_flight() > 0) turn();
  for (std::size_t index = 0; index < kParts; ++index) {
    EXPECT_EQ(recorders[index].calls, 2);
    EXPECT_EQ(recorders[index].last, 512);
    EXPECT_EQ(parts[index][511], static_cast<std::byte>(index));
  }
  Recorder end;
  ring_->read(0, parts[0], kParts * 512, end);
  while (ring_->io_in_flight() > 0) turn();
  EXPECT_EQ(end.last, 0);
}

// A pipe's bytes are gone as soon as the kernel has begun a read of it.
TEST_F(RingTest, WhatFollowsACompletionIsBegunBeforeWhatIsLeftForLater) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  const Fd out(ends[0]);
  const Fd in(ends[1]);
  ring_bell(in);
  const std::array<int, 1> files = {out.get()};
  ring_->set_files(files);
  const Fd bell = event();
  std::array<std::byte, 8> bytes{};
  Recorder reading;
  Chore chore;
  int left = -1;
  chore.then = [&] { EXPECT_EQ(ioctl(out.get(), FIONREAD, &left), 0); };
  Recorder rung;
  rung.then = [&] {
    drain(bell);
    ring_->later(chore, 1);
    ring_->read(0, bytes, 0, reading);
  };
  ASSERT_TRUE(ring_->poll(bell.get(), POLLIN, rung));
  ring_bell(bell);
  while (rung.calls == 0) turn();
  EXPECT_EQ(chore.calls, 1);  // in the same round
  EXPECT_EQ(left, 0);
  while (reading.calls == 0) turn();
  EXPECT_EQ(reading.last, 8);
}

// A round does so much of it, and the next one does not wait, whatever its timeout.
TEST_F(RingTest, WhatIsLeftForLaterIsDoneInPartsAndInOrder) {
  const Fd bell = event();
  std::array<Chore, 5> chores;
  std::vector<std::size_t> order;
  for (std::size_t index = 0; index < chores.size(); ++index) {
    chores[index].then = [&order, index] { order.push_back(index); };
    ring_->later(chores[index], Ring::kLaterBytesMax / 2);
  }
  Recorder recorder;
  ASSERT_TRUE(ring_->poll(bell.get(), POLLIN, recorder));
  EXPECT_EQ(turn(Duration::max()), 0U);
  EXPECT_EQ(order.size(), 2U);
  ring_bell(bell);
  turn(Duration::max());
  EXPECT_EQ(recorder.calls, 1);  // what completes meanwhile is told between them
  EXPECT_EQ(order.size(), 4U);
  drain(bell);
  turn(Duration::max());
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
}

TEST_F(RingTest, WhatIsLeftForLaterMayLeaveMoreForLater) {
  Chore chore;
  chore.then = [&] {
    if (chore.calls < 3) ring_->later(chore, 1);
  };
  ring_->later(chore, 1);
  turn(Duration::max());
  EXPECT_EQ(chore.calls, 3);
  EXPECT_EQ(turn(Duration::zero()), 0U);
  EXPECT_EQ(chore.calls, 3);
}

TEST_F(RingTest, MayBeMadeByAnotherThreadThanTheReactor) {
  const Fd bell = event();
  Recorder recorder;
  ASSERT_TRUE(ring_->poll(bell.get(), POLLIN, recorder));
  ring_bell(bell);
  std::jthread reactor([&] { turn(); });
  reactor.join();
  EXPECT_EQ(recorder.calls, 1);
}

}  // namespace
}  // namespace terrace::mover
