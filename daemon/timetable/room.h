// SPDX-License-Identifier: Apache-2.0
// How many bytes of a tier are taken over time, as a row of steps, the last of which has no end. Internal to timetable.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace terrace::timetable {

inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 4;

class Room {
 public:
  explicit Room(std::uint64_t capacity_bytes);

  // From `from_ns` on; bytes may be negative: given back.
  void add(std::int64_t from_ns, std::int64_t bytes);
  // The earliest time, from `from_ns` on, after which `bytes` more fit for good; kNever if they do not.
  std::int64_t fits_for_good(std::int64_t from_ns, std::int64_t bytes) const;
  // The earliest time t, from `from_ns` on, such that `bytes` more fit in [t, until_ns); `until_ns` if there is none.
  std::int64_t fits_until(std::int64_t from_ns, std::int64_t until_ns, std::int64_t bytes) const;
  void clear(std::int64_t bytes);

 private:
  struct Step {
    std::int64_t at_ns = 0;
    std::int64_t bytes = 0;
  };
  std::int64_t capacity_bytes_;
  std::vector<Step> steps_;
};

}  // namespace terrace::timetable
