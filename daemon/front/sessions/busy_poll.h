// SPDX-License-Identifier: Apache-2.0
// When a trainer's ring is worth polling: where its requests follow one another so closely that the next one comes
// before a sleeping reactor could have been woken for it. Whoever asks every few milliseconds is never polled for.
#pragma once

#include <sched.h>

#include <algorithm>

#include "base/time.h"

namespace terrace::front {

class BusyPoll {
 public:
  // From a request to the next one of a trainer that does nothing but wait for the answer, both sides asleep meanwhile.
  static constexpr Duration kClose = std::chrono::microseconds(100);
  // How long the ring is polled after a request, at least: about a wake-up of a processor, in place of which it is.
  static constexpr Duration kPatienceMin = std::chrono::microseconds(30);
  // Close ones before polling begins: twice as many after each time that nothing came of it, up to a bound that keeps
  // it cheap where it never pays, as where the scheduler has both sides on one processor.
  static constexpr unsigned kNeeded = 2;
  static constexpr unsigned kNeededMax = 64;

  // A request came.
  void asked(Time at) {
    pause_ = at - last_;
    close_ = pause_ <= kClose ? std::min(close_ + 1, kNeededMax) : 0;
    last_ = at;
    if (polls_) needed_ = kNeeded;
  }

  bool is_worth() const { return close_ >= needed_; }
  bool polls() const { return polls_; }
  void begin() { polls_ = true; }
  // Twice as long as the last one took to come: at first the trainer, too, must be woken.
  Duration patience() const { return std::clamp(2 * pause_, kPatienceMin, kClose); }
  // Nothing came for as long as that.
  bool was_in_vain(Time at) const { return at - last_ > patience(); }
  void end(bool in_vain) {
    polls_ = false;
    if (!in_vain) return;
    close_ = 0;
    needed_ = std::min(2 * needed_, kNeededMax);
  }

 private:
  Time last_{};
  Duration pause_{};    // before the last one
  unsigned close_ = 0;  // requests in a row, each close to the one before
  unsigned needed_ = kNeeded;
  bool polls_ = false;
};

// There is a processor for who asks beside the calling thread's.
inline bool may_busy_poll() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) > 1;  // no room in the set: many
}

}  // namespace terrace::front
