// SPDX-License-Identifier: Apache-2.0
// Which of the groups of a horizon is under way at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace::foresight {

// `begin_ns` as in SweepInput: of each group, and the end of the last; sorted. The last one that has begun by then,
// else the first. Takes the time of a look for each doubling of how far it lies from `near`, which is any group.
inline std::uint32_t group_at(std::span<const std::int64_t> begin_ns, std::int64_t time_ns, std::uint32_t near) {
  const std::size_t groups = begin_ns.size() - 1;
  std::size_t low = std::min<std::size_t>(near, groups);  // begins by then, or is the first
  std::size_t high = low;                                 // begins later, or is past the last
  for (std::size_t reach = 1; low > 0 && begin_ns[low] > time_ns; reach *= 2) {
    high = low;
    low -= std::min(low, reach);
  }
  if (high == low)
    for (std::size_t reach = 1; high < groups && begin_ns[high] <= time_ns; reach *= 2) {
      low = high;
      high = std::min(groups, high + reach);
    }
  const auto past = std::upper_bound(begin_ns.begin() + static_cast<std::ptrdiff_t>(low),
                                     begin_ns.begin() + static_cast<std::ptrdiff_t>(high), time_ns);
  return past == begin_ns.begin() ? 0 : static_cast<std::uint32_t>(past - begin_ns.begin() - 1);
}

}  // namespace terrace::foresight
