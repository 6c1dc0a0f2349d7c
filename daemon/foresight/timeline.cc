// SPDX-License-Identifier: Apache-2.0
#include "foresight/timeline.h"

#include <algorithm>
#include <limits>

namespace terrace::foresight {

Timeline::Timeline() {
  free_.emplace(std::numeric_limits<std::int64_t>::min() / 2, std::numeric_limits<std::int64_t>::max() / 2);
}

std::optional<Span> Timeline::take_earliest(Span window, std::int64_t work_ns) {
  if (window.end_ns - window.begin_ns < work_ns) return std::nullopt;
  auto first = free_.upper_bound(window.begin_ns);
  if (first != free_.begin() && std::prev(first)->second > window.begin_ns) --first;
  std::int64_t left = work_ns;
  std::int64_t end = 0;
  auto last = first;
  int looks = 0;
  for (; left > 0; ++last) {
    if (last == free_.end() || last->first >= window.end_ns || ++looks > kLooksMax) return std::nullopt;
    const std::int64_t begin = std::max(last->first, window.begin_ns);
    end = std::min({last->second, window.end_ns, begin + left});
    left -= end - begin;
  }
  return cut(first, last, {std::max(first->first, window.begin_ns), end});
}

std::optional<Span> Timeline::take_latest(Span window, std::int64_t work_ns) {
  if (window.end_ns - window.begin_ns < work_ns) return std::nullopt;
  const auto past = free_.lower_bound(window.end_ns);  // begins too late
  auto first = past;
  std::int64_t left = work_ns;
  std::int64_t begin = window.end_ns;
  std::int64_t end = window.begin_ns;
  int looks = 0;
  while (left > 0) {
    if (first == free_.begin() || ++looks > kLooksMax) return std::nullopt;
    --first;
    const std::int64_t until = std::min(first->second, window.end_ns);
    if (until <= window.begin_ns) return std::nullopt;
    end = std::max(end, until);
    begin = std::max({first->first, window.begin_ns, until - left});
    left -= until - begin;
  }
  return cut(first, past, {begin, end});
}

Span Timeline::cut(Free::iterator first, Free::iterator past, Span taken) {
  const Span before{first->first, taken.begin_ns};
  const Span after{taken.end_ns, std::prev(past)->second};
  free_.erase(first, past);
  if (before.end_ns > before.begin_ns) free_.emplace(before.begin_ns, before.end_ns);
  if (after.end_ns > after.begin_ns) free_.emplace(after.begin_ns, after.end_ns);
  return taken;
}

}  // namespace terrace::foresight
