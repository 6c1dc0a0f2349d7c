// SPDX-License-Identifier: Apache-2.0
// How much may be written to the block tier in a day, so that its drives last. What must be written is written
// nevertheless, and counts; what would be written ahead of need waits until the budget has caught up.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/time.h"

namespace terrace::engine {

class WriteBudget {
 public:
  // 0: there is none, and everything is allowed. An hour's share is there at once, and never more; the most that is
  // owed is a day's, so that a burst is forgotten after one.
  explicit WriteBudget(std::uint64_t bytes_per_day)
      : bytes_per_day_(static_cast<double>(bytes_per_day)), left_(bytes_per_day_ / kHoursADay) {}

  // `bytes` are on their way to the tier.
  void spend(Time now, std::uint64_t bytes) {
    left_ = std::max(left_at(now) - static_cast<double>(bytes), -bytes_per_day_);
    since_ = now;
  }
  // So many that were spent stay where they are after all.
  void give_back(Time now, std::uint64_t bytes) {
    left_ = left_at(now) + static_cast<double>(bytes);
    since_ = now;
  }
  bool is_set() const { return bytes_per_day_ > 0; }
  bool allows_early(Time now) const { return bytes_per_day_ == 0 || left_at(now) > 0; }
  // Negative: owed.
  std::int64_t left_bytes(Time now) const { return static_cast<std::int64_t>(left_at(now)); }

 private:
  static constexpr double kHoursADay = 24;

  double left_at(Time now) const {
    const std::chrono::duration<double, std::chrono::days::period> passed = now - since_;
    return std::min(left_ + passed.count() * bytes_per_day_, bytes_per_day_ / kHoursADay);
  }

  double bytes_per_day_;
  double left_;
  Time since_{};
};

}  // namespace terrace::engine
