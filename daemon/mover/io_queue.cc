// SPDX-License-Identifier: Apache-2.0
#include "mover/io_queue.h"

#include <algorithm>

#include "base/check.h"

namespace terrace::mover {

void IoQueue::enter(IoWaiter& waiter, Class urgency) {
  if (under_way_ == depth_) {
    waiting_[static_cast<std::size_t>(urgency)].push_back(&waiter);
    return;
  }
  ++under_way_;
  waiter.admitted();
}

void IoQueue::leave() {
  TERRACE_CHECK(under_way_ > 0);
  const auto queue = std::ranges::find_if(waiting_, [](const auto& waiting) { return !waiting.empty(); });
  if (queue == waiting_.end()) {
    --under_way_;
    return;
  }
  IoWaiter& next = *queue->front();
  queue->pop_front();
  next.admitted();
}

}  // namespace terrace::mover
