// SPDX-License-Identifier: Apache-2.0
// Shows that no more I/Os are admitted than the queue is deep, and of those that wait the most urgent first.
#include "mover/io_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace terrace::mover {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class IoQueueTest : public testing::Test {
 protected:
  struct Waiter final : IoWaiter {
    Waiter(int name, std::vector<int>& admitted_ones) : number(name), order(admitted_ones) {}
    void admitted() override { order.push_back(number); }
    int number;
    std::vector<int>& order;
  };

  std::vector<int> order_;
  Waiter one_{1, order_};
  Waiter two_{2, order_};
  Waiter three_{3, order_};
  Waiter four_{4, order_};
};

TEST_F(IoQueueTest, AdmitsAsManyAsItIsDeep) {
  IoQueue queue(2);
  queue.enter(one_, Class::kDemand);
  queue.enter(two_, Class::kDemand);
  queue.enter(three_, Class::kDemand);
  EXPECT_THAT(order_, ElementsAre(1, 2));
  queue.leave();
  EXPECT_THAT(order_, ElementsAre(1, 2, 3));
}

TEST_F(IoQueueTest, AdmitsTheMostUrgentFirst) {
  IoQueue queue(1);
  queue.enter(one_, Class::kCleaning);
  queue.enter(two_, Class::kCleaning);
  queue.enter(three_, Class::kDemand);
  queue.enter(four_, Class::kDemand);
  for (int i = 0; i < 3; ++i) queue.leave();
  EXPECT_THAT(order_, ElementsAre(1, 3, 4, 2));
}

TEST_F(IoQueueTest, HasRoomAgainOnceAllHaveLeft) {
  IoQueue queue(1);
  queue.enter(one_, Class::kDemand);
  queue.leave();
  order_.clear();
  EXPECT_THAT(order_, IsEmpty());
  queue.enter(two_, Class::kPrefetch);
  EXPECT_THAT(order_, ElementsAre(2));
}

}  // namespace
}  // namespace terrace::mover
