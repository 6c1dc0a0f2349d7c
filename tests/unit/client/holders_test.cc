// SPDX-License-Identifier: Apache-2.0
// Shows that of all who hold something exactly one is the last to leave once it is shut, whatever threads they come,
// hand over and leave on, and that it can be destroyed then.
#include "holders.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace terrace::client {
namespace {

TEST(HoldersTest, ItsMakerIsTheLastWhereNobodyElseHoldsIt) {
  Holders holders;
  EXPECT_EQ(holders.count(), 1U);
  EXPECT_TRUE(holders.shut());
  EXPECT_FALSE(holders.shut());
  EXPECT_TRUE(holders.leave());
  EXPECT_EQ(holders.enter(), Holders::Entry::kShut);
}

TEST(HoldersTest, NobodyIsTheLastWhileItIsOpen) {
  Holders holders;
  EXPECT_EQ(holders.enter(), Holders::Entry::kHolds);
  EXPECT_FALSE(holders.leave());
  holders.add();
  EXPECT_FALSE(holders.leave());
  EXPECT_EQ(holders.count(), 1U);
}

TEST(HoldersTest, WhoeverLeavesAfterItsMakerIsTheLast) {
  Holders holders;
  holders.add();
  std::thread([&] { holders.add(); }).join();
  EXPECT_EQ(holders.count(), 3U);
  holders.shut();
  EXPECT_FALSE(holders.leave());
  EXPECT_EQ(holders.enter(), Holders::Entry::kShut);
  std::thread([&] { EXPECT_FALSE(holders.leave()); }).join();
  bool called = false;
  EXPECT_TRUE(holders.leave([&] { called = true; }));
  EXPECT_TRUE(called);
}

// Holders come, take another hold, give the first one up, and leave on whatever thread, while its maker shuts it.
TEST(HoldersTest, ExactlyOneIsTheLastOfManyThreads) {
  constexpr int kThreads = 4;
  for (int round = 0; round < 300; ++round) {
    auto holders = std::make_unique<Holders>();
    std::atomic<int> last = 0;
    std::atomic<int> ready = 0;
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        ++ready;
        for (Holders::Entry entry; (entry = holders->enter()) != Holders::Entry::kShut;) {
          if (entry == Holders::Entry::kShutLast) {
            ++last;
            break;
          }
          holders->add();  // as a lease within a call
          if (holders->leave()) ++last;
          if (holders->leave([] {})) ++last;
        }
      });
    }
    while (ready < kThreads) std::this_thread::yield();
    EXPECT_TRUE(holders->shut());
    if (holders->leave()) ++last;
    threads.clear();
    EXPECT_EQ(last, 1) << "round " << round;
    EXPECT_EQ(holders->count(), 0U);
  }
}

// One that its holders keep is destroyed by the thread that the last one tells, as a session is by its reader.
TEST(HoldersTest, IsDestroyedWhenTheLastOneHasLeftIt) {
  constexpr int kThreads = 4;
  for (int round = 0; round < 300; ++round) {
    auto* const holders = new Holders();
    std::atomic<bool> told = false;
    const auto tell = [&] { told = true; };
    for (int i = 0; i < kThreads; ++i) holders->add();
    std::jthread reader([&, holders] {
      while (!told) std::this_thread::yield();
      holders->drain();
      delete holders;
    });
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([&, holders] { holders->leave(tell); });
    holders->shut();
    holders->leave(tell);
  }
}

}  // namespace
}  // namespace terrace::client
