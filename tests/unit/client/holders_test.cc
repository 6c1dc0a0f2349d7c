// SPDX-License-Identifier: Apache-2.0
// Shows that what is held is never found empty while somebody holds it, whatever threads they come, hand over and leave
// on, and that it can be destroyed once it is.
#include "holders.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace terrace::client {
namespace {

TEST(HoldersTest, ItsMakerHoldsIt) {
  Holders holders;
  EXPECT_EQ(holders.count(), 1U);
  EXPECT_FALSE(holders.shut());
  EXPECT_TRUE(holders.shut_off());
  EXPECT_FALSE(holders.shut_off());
  EXPECT_TRUE(holders.shut());
  holders.leave();
  EXPECT_EQ(holders.count(), 0U);
}

TEST(HoldersTest, CountsAcrossThreads) {
  Holders holders;
  holders.add();
  std::thread([&] { holders.add(); }).join();
  EXPECT_EQ(holders.count(), 3U);
  std::thread([&] { holders.leave(); }).join();
  EXPECT_TRUE(holders.enter());
  EXPECT_EQ(holders.count(), 3U);
}

TEST(HoldersTest, NobodyEntersOnceItIsShut) {
  Holders holders;
  EXPECT_TRUE(holders.enter());
  holders.shut_off();
  EXPECT_FALSE(holders.enter());
  EXPECT_EQ(holders.count(), 2U);
}

// Holders come, take another hold, give the first one up, and leave on whatever thread, while its maker shuts it: who
// finds it empty then destroys it, as a session's reader does.
TEST(HoldersTest, IsEmptyForGoodOnceItIsFoundSo) {
  constexpr int kThreads = 4;
  for (int round = 0; round < 300; ++round) {
    const auto holders = std::make_shared<Holders>();
    auto held = std::make_unique<int>(round);
    std::atomic<int> ready = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, holders] {
        ++ready;
        while (holders->enter()) {
          holders->add();  // as a lease within a call
          holders->leave();
          EXPECT_EQ(*held, round);
          holders->leave();
        }
      });
    }
    while (ready < kThreads) std::this_thread::yield();
    holders->shut_off();
    holders->leave();
    while (holders->count() != 0) std::this_thread::yield();
    held.reset();
  }
}

// To leave is the last that is done with it: nobody else needs to keep it.
TEST(HoldersTest, IsDestroyedAsSoonAsItIsFoundEmpty) {
  constexpr int kThreads = 4;
  for (int round = 0; round < 300; ++round) {
    auto holders = std::make_unique<Holders>();
    for (int i = 0; i < kThreads; ++i) holders->add();
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([whole = holders.get()] { whole->leave(); });
    holders->shut_off();
    holders->leave();
    while (holders->count() != 0) std::this_thread::yield();
    holders.reset();
  }
}

}  // namespace
}  // namespace terrace::client
