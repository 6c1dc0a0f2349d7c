// SPDX-License-Identifier: Apache-2.0
// How many I/Os the block devices have under way: their queue's depth. Whoever comes when it is full waits, and the
// most urgent goes first, for as long as there are such. So what is summed before it is written, or checked after it
// was read, keeps nobody from the devices.
#pragma once

#include <array>
#include <cstddef>
#include <deque>

#include "mover/transfer.h"

namespace terrace::mover {

class IoWaiter {
 public:
  virtual ~IoWaiter() = default;
  // It has a place in the queue, which it leaves later.
  virtual void admitted() = 0;
};

// The reactor's.
class IoQueue {
 public:
  explicit IoQueue(unsigned depth) : depth_(depth) {}

  // Takes a place, at once or as soon as there is one: then it is told.
  void enter(IoWaiter& waiter, Class urgency);
  // Gives a place back.
  void leave();

 private:
  unsigned depth_;
  unsigned under_way_ = 0;
  std::array<std::deque<IoWaiter*>, kClasses> waiting_;
};

}  // namespace terrace::mover
