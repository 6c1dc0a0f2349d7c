// SPDX-License-Identifier: Apache-2.0
// Calls back while a descriptor is ready; stops when it goes out of scope.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "mover/ring.h"
#include "terrace/error.h"

namespace terrace::front {

class Watch final : private mover::Completion {
 public:
  // Called on the reactor thread with the ready events (POLLIN, POLLHUP, ...). It must not destroy this watch.
  using Ready = std::move_only_function<void(unsigned events)>;

  // `descriptor` is borrowed and outlives the watch. Errors as Ring::poll().
  static Result<std::unique_ptr<Watch>> create(mover::Ring& ring, int descriptor, unsigned events, Ready ready);
  ~Watch() override { ring_.unpoll(poll_); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  Watch(mover::Ring& ring, Ready ready) : ring_(ring), ready_(std::move(ready)) {}
  void completed(int result, bool more) override;

  mover::Ring& ring_;
  Ready ready_;
  mover::PollId poll_ = mover::PollId::kNone;
};

}  // namespace terrace::front
