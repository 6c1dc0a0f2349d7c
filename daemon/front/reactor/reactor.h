// SPDX-License-Identifier: Apache-2.0
// What the one thread sleeps in, and what wakes it: the ring, mail from other threads, the signals to stop. And what it
// has done with, which goes when nobody is inside it any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/time.h"
#include "front/reactor/mailbox.h"
#include "front/reactor/watch.h"
#include "mover/ring.h"
#include "terrace/error.h"

namespace terrace::front {

// The reactor thread's, except post(), stop() and now().
class Reactor {
 public:
  // At most so many jobs wait, and so many descriptors are watched. SIGTERM and SIGINT, which are blocked in all
  // threads, stop it. Errors as Ring::create(); kResourceExhausted: no descriptor is left.
  static Result<std::unique_ptr<Reactor>> create(std::size_t jobs_max, unsigned polls_max);

  // False, and nothing done, when too many jobs wait, or after close().
  bool post(Mailbox::Job job) { return mailbox_->post(std::move(job)); }
  // The same as SIGTERM.
  void stop();
  Time now() const { return clock_.now(); }

  bool stopping() const { return stopping_; }
  mover::Ring& ring() { return *ring_; }
  // As Watch::create().
  Result<std::unique_ptr<Watch>> watch(int descriptor, unsigned events, Watch::Ready ready) {
    return Watch::create(*ring_, descriptor, events, std::move(ready));
  }
  // Sleeps until something happens, at most so long, and lets it happen. Errors: the ring broke.
  Result<void> wait(Duration longest);

  // Destroyed by bury(): watches first, then the rest in order.
  void spend(std::unique_ptr<Watch> watch) { spent_watches_.push_back(std::move(watch)); }
  void spend(std::shared_ptr<void> thing) { spent_.push_back(std::move(thing)); }
  // Between two turns, when nobody is inside them.
  void bury();

  // Runs the jobs that wait a last time; none come any more.
  void close() { mailbox_->close(); }
  // Neither mail nor a signal wakes it any more, nor what was spent: before what they would reach goes.
  void turn_deaf();

 private:
  Reactor() = default;

  const MonotonicClock clock_{};
  std::unique_ptr<Mailbox> mailbox_;
  std::unique_ptr<mover::Ring> ring_;
  Fd signals_;
  std::atomic<bool> stopping_ = false;
  std::vector<std::unique_ptr<Watch>> watches_;  // of the mailbox and of signals
  std::vector<std::shared_ptr<void>> spent_;
  std::vector<std::unique_ptr<Watch>> spent_watches_;
};

}  // namespace terrace::front
