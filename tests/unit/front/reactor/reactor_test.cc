// SPDX-License-Identifier: Apache-2.0
// Shows what wakes the reactor, what it refuses, and in which order it lets go of what is spent.
#include "front/reactor/reactor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace terrace::front {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Duration kLong = std::chrono::seconds(60);

class ReactorTest : public testing::Test {
 protected:
  void SetUp() override {
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &stops, &before_);
    auto reactor = Reactor::create(2, 16);
    ASSERT_TRUE(reactor.has_value());
    reactor_ = std::move(*reactor);
  }
  void TearDown() override { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // Says so when it goes.
  std::shared_ptr<void> thing(std::string name) {
    return {nullptr, [this, name = std::move(name)](void*) { gone_.push_back(name); }};
  }

  std::unique_ptr<Reactor> reactor_;
  std::vector<std::string> gone_;
  sigset_t before_{};
};

TEST_F(ReactorTest, MailWakesItFromAnyThreadAndRunsInOrder) {
  std::vector<int> ran;
  std::jthread([&] {
    EXPECT_TRUE(reactor_->post([&] { ran.push_back(1); }));
    EXPECT_TRUE(reactor_->post([&] { ran.push_back(2); }));
    EXPECT_FALSE(reactor_->post([&] { ran.push_back(3); }));  // as many wait as may
  }).join();
  ASSERT_TRUE(reactor_->wait(kLong).has_value());
  EXPECT_THAT(ran, ElementsAre(1, 2));
  EXPECT_FALSE(reactor_->stopping());
}

TEST_F(ReactorTest, StopAndTheSignalWakeIt) {
  reactor_->stop();
  ASSERT_TRUE(reactor_->wait(kLong).has_value());
  EXPECT_TRUE(reactor_->stopping());
  auto other = Reactor::create(2, 16);
  ASSERT_TRUE(other.has_value());
  ASSERT_EQ(pthread_kill(pthread_self(), SIGTERM), 0);
  ASSERT_TRUE((*other)->wait(kLong).has_value());
  EXPECT_TRUE((*other)->stopping());
}

TEST_F(ReactorTest, WhatIsSpentGoesBetweenTurnsWatchesFirst) {
  const Fd event(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  std::unique_ptr<Watch> watch;
  unsigned calls = 0;
  auto made = reactor_->watch(event.get(), POLLIN, [&, its = thing("watch")](unsigned) {
    ++calls;
    reactor_->spend(thing("session"));
    reactor_->spend(std::move(watch));  // from inside its own call
  });
  ASSERT_TRUE(made.has_value());
  watch = std::move(*made);
  ASSERT_TRUE(reactor_->wait(kLong).has_value());
  EXPECT_EQ(calls, 1U);
  EXPECT_THAT(gone_, IsEmpty());
  reactor_->bury();
  EXPECT_THAT(gone_, ElementsAre("watch", "session"));
  ASSERT_TRUE(reactor_->wait(Duration::zero()).has_value());
  EXPECT_EQ(calls, 1U);
}

TEST_F(ReactorTest, NothingWakesItOnceItIsDeaf) {
  bool ran = false;
  EXPECT_TRUE(reactor_->post([&] { ran = true; }));
  reactor_->spend(thing("session"));
  reactor_->turn_deaf();
  EXPECT_THAT(gone_, ElementsAre("session"));
  ASSERT_TRUE(reactor_->wait(std::chrono::milliseconds(1)).has_value());
  EXPECT_FALSE(ran);
  reactor_->close();  // what waits runs a last time
  EXPECT_TRUE(ran);
  EXPECT_FALSE(reactor_->post([] {}));
}

}  // namespace
}  // namespace terrace::front
