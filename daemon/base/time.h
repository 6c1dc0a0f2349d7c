// SPDX-License-Identifier: Apache-2.0
// Time as the engine sees it: nanoseconds of a monotonic clock that comes in from outside.
#pragma once

#include <chrono>
#include <cstdint>

namespace terrace {

using Duration = std::chrono::nanoseconds;

// A point on some monotonic clock; the epoch means nothing.
enum class Time : std::int64_t {};

inline constexpr Time kNever = Time{INT64_MAX};

constexpr Time operator+(Time time, Duration duration) {
  const auto at = static_cast<std::int64_t>(time);
  if (duration.count() > 0 && at > INT64_MAX - duration.count()) return kNever;
  return Time{at + duration.count()};
}
constexpr Duration operator-(Time later, Time earlier) {
  return Duration(static_cast<std::int64_t>(later) - static_cast<std::int64_t>(earlier));
}

// Where the time comes from: CLOCK_MONOTONIC in the daemon, a variable in tests and simulation.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time now() const = 0;
};

class MonotonicClock final : public Clock {
 public:
  Time now() const override {
    return Time{std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()).count()};
  }
};

}  // namespace terrace
