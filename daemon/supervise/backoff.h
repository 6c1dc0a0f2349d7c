// SPDX-License-Identifier: Apache-2.0
// How long to wait before a daemon that died is started again.
#pragma once

#include <algorithm>

#include "base/time.h"

namespace terrace::supervise {

// The first deaths are followed by a start at once; those after them by ever longer waits, up to a bound. It never
// gives up: what is kept is worth more than a tidy end.
class Backoff {
 public:
  static constexpr int kAtOnce = 3;
  static constexpr Duration kFirstWait = std::chrono::milliseconds(100);
  // One that lived so long had started well: the count begins anew.
  static constexpr Duration kLivedLong = std::chrono::seconds(10);

  explicit Backoff(Duration longest) : longest_(longest) {}

  // The wait after a death, `lived` after the start.
  Duration after(Duration lived) {
    if (lived >= kLivedLong) deaths_ = 0;
    if (deaths_ < kAtOnce) {
      ++deaths_;
      wait_ = kFirstWait;
      return Duration::zero();
    }
    const Duration wait = std::min(wait_, longest_);
    wait_ = std::min(wait_ * 2, longest_);
    return wait;
  }

 private:
  Duration longest_;
  Duration wait_{kFirstWait};
  int deaths_ = 0;
};

}  // namespace terrace::supervise
