// SPDX-License-Identifier: Apache-2.0
// When the uses of a horizon are, and when they are if some of them wait.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "foresight/group_at.h"

namespace terrace::foresight {

// When the groups of the horizon begin, and the step that is planned.
struct Timing {
  std::vector<std::int64_t> begins;  // of groups, and the end of the last
  std::int64_t window_ns = 0;
  std::int64_t period_ns = 0;

  std::uint32_t group_at(std::int64_t time, std::uint32_t near) const {
    return foresight::group_at(begins, time, near);
  }
  bool in_window(std::int64_t time) const {
    return time >= window_ns && time < window_ns + std::max<std::int64_t>(period_ns, 1);
  }

  // As it is where groups wait, each for so long: everything after is later by that.
  Timing with(const std::vector<std::int64_t>& waits) const {
    std::vector<std::int64_t> late(begins.size(), 0);
    std::partial_sum(waits.begin(), waits.end(), late.begin());
    if (!waits.empty()) late.back() = late[waits.size() - 1];
    const auto later = [&](std::int64_t time) {
      return time + (time >= begins.back() ? late.back() : late[group_at(time, 0)]);
    };
    Timing waited{.begins = begins, .window_ns = later(window_ns), .period_ns = 0};
    waited.period_ns = later(window_ns + period_ns) - waited.window_ns;
    for (std::size_t group = 0; group < late.size(); ++group) waited.begins[group] += late[group];
    return waited;
  }
};

}  // namespace terrace::foresight
