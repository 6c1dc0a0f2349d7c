// SPDX-License-Identifier: Apache-2.0
#include "timetable/lane.h"

#include <algorithm>
#include <cstddef>

namespace terrace::timetable {

std::size_t Lane::after(std::int64_t at_ns) const {
  const auto found = std::ranges::partition_point(taken_, [&](const Taken& taken) { return taken.end_ns <= at_ns; });
  return static_cast<std::size_t>(found - taken_.begin());
}

std::int64_t Lane::earliest(std::int64_t from_ns, std::int64_t length_ns) const {
  for (std::size_t at = after(from_ns); at < taken_.size(); ++at) {
    if (from_ns + length_ns <= taken_[at].begin_ns) break;
    from_ns = std::max(from_ns, taken_[at].end_ns);
  }
  return from_ns;
}

std::int64_t Lane::latest(std::int64_t from_ns, std::int64_t until_ns, std::int64_t length_ns) const {
  std::size_t at = after(until_ns);
  if (at < taken_.size()) until_ns = std::min(until_ns, taken_[at].begin_ns);
  while (at > 0 && taken_[at - 1].end_ns > until_ns - length_ns && until_ns - length_ns >= from_ns)
    until_ns = std::min(until_ns, taken_[--at].begin_ns);
  return until_ns - length_ns;
}

void Lane::take(std::int64_t begin_ns, std::int64_t length_ns) {
  const std::size_t at = after(begin_ns);
  const std::int64_t end_ns = begin_ns + length_ns;
  const bool joins_before = at > 0 && taken_[at - 1].end_ns == begin_ns;
  const bool joins_after = at < taken_.size() && taken_[at].begin_ns == end_ns;
  const auto here = taken_.begin() + static_cast<std::ptrdiff_t>(at);
  if (joins_before && joins_after) {
    taken_[at - 1].end_ns = taken_[at].end_ns;
    taken_.erase(here);
  } else if (joins_before) {
    taken_[at - 1].end_ns = end_ns;
  } else if (joins_after) {
    taken_[at].begin_ns = begin_ns;
  } else {
    taken_.insert(here, {.begin_ns = begin_ns, .end_ns = end_ns});
  }
}

}  // namespace terrace::timetable
