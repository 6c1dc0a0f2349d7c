// SPDX-License-Identifier: Apache-2.0
#include "forecast/endurance.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace terrace::forecast {
namespace {

constexpr double kDaysAYear = 365;
constexpr double kSecondsADay = 86'400;

}  // namespace

double Drives::rated_bytes() const {
  return static_cast<double>(count) * static_cast<double>(capacity_bytes) * writes_a_day * rated_years * kDaysAYear;
}

double Drives::rated_bytes_per_s() const {
  return static_cast<double>(count) * static_cast<double>(capacity_bytes) * writes_a_day / kSecondsADay;
}

std::uint64_t drives_for(std::uint64_t bytes, const Drives& drives) {
  TERRACE_CHECK(drives.capacity_bytes > 0);
  return std::max<std::uint64_t>(1, bytes / drives.capacity_bytes + (bytes % drives.capacity_bytes == 0 ? 0 : 1));
}

Wear wear(const Drives& drives, std::uint64_t written_bytes, Duration step) {
  TERRACE_CHECK(step > Duration::zero() && drives.count > 0);
  const double each = static_cast<double>(drives.capacity_bytes);
  Wear wear;
  wear.bytes_a_day = static_cast<double>(written_bytes) / std::chrono::duration<double>(step).count() * kSecondsADay;
  wear.writes_a_day = wear.bytes_a_day / (each * static_cast<double>(drives.count));
  wear.drives = wear.bytes_a_day / (each * drives.writes_a_day);
  wear.years = written_bytes == 0 ? std::numeric_limits<double>::infinity()
                                  : drives.rated_bytes() / wear.bytes_a_day / kDaysAYear;
  return wear;
}

}  // namespace terrace::forecast
