// SPDX-License-Identifier: Apache-2.0
#include "foresight/timeline.h"

#include <algorithm>
#include <limits>
#include <utility>

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
  const auto found = find_latest(window, work_ns);
  if (!found) return std::nullopt;
  return cut(found->first, found->past, found->taken);
}

std::optional<Timeline::Found> Timeline::find_latest(Span window, std::int64_t work_ns) const {
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
  return Found{first, past, {begin, end}};
}

Span Timeline::cut(Free::const_iterator first, Free::const_iterator past, Span taken) {
  const Span after{taken.end_ns, std::prev(past)->second};
  auto left = free_.erase(first, first);  // the same, to be changed
  if (left->first < taken.begin_ns) {
    left->second = taken.begin_ns;
    ++left;
  }
  if (after.end_ns > after.begin_ns) {
    if (left == past) {
      free_.emplace_hint(past, after.begin_ns, after.end_ns);
      return taken;
    }
    auto node = free_.extract(left++);  // most cuts leave as many intervals as there were
    node.key() = after.begin_ns;
    node.mapped() = after.end_ns;
    left = free_.erase(left, past);
    free_.insert(left, std::move(node));
    return taken;
  }
  free_.erase(left, past);
  return taken;
}

}  // namespace terrace::foresight
