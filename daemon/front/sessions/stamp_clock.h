// SPDX-License-Identifier: Apache-2.0
// What the stamps of access logs mean: the processor's counter, against the daemon's clock.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace terrace::front {

class StampClock {
 public:
  // A stamp and the time of the same moment. The more they are apart, the better the rate is known.
  void see(std::uint64_t stamp, Time now) {
    if (first_stamp_ == 0) {
      first_stamp_ = stamp;
      first_ = now;
    }
    last_stamp_ = stamp;
    last_ = now;
  }

  // When the stamp was made: not after the last moment that was seen, and not long before it. Time{} while the rate is
  // not known. Stamps are a client's: any number is possible.
  Time time_of(std::uint64_t stamp) const {
    constexpr std::int64_t kAgeNsMax = 10'000'000'000;
    if (last_ - first_ < std::chrono::milliseconds(1) || last_stamp_ <= first_stamp_) return Time{};
    if (stamp >= last_stamp_) return last_;
    const double ns_a_tick =
        static_cast<double>((last_ - first_).count()) / static_cast<double>(last_stamp_ - first_stamp_);
    const double age_ns = static_cast<double>(last_stamp_ - stamp) * ns_a_tick;
    return last_ + -Duration(age_ns < static_cast<double>(kAgeNsMax) ? static_cast<std::int64_t>(age_ns) : kAgeNsMax);
  }

 private:
  std::uint64_t first_stamp_ = 0;
  std::uint64_t last_stamp_ = 0;
  Time first_{};
  Time last_{};
};

}  // namespace terrace::front
