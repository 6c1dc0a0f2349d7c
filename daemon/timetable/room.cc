// SPDX-License-Identifier: Apache-2.0
#include "timetable/room.h"

#include <algorithm>
#include <cstddef>

namespace terrace::timetable {

Room::Room(std::uint64_t capacity_bytes)
    : capacity_bytes_(static_cast<std::int64_t>(std::min<std::uint64_t>(capacity_bytes, kNever))) {
  clear(0);
}

void Room::clear(std::int64_t bytes) { steps_.assign(1, {.at_ns = -kNever, .bytes = bytes}); }

void Room::add(std::int64_t from_ns, std::int64_t bytes) {
  std::size_t at = steps_.size();
  while (steps_[at - 1].at_ns >= from_ns && at > 1) {
    steps_[at - 1].bytes += bytes;
    --at;
  }
  if (at < steps_.size() && steps_[at].at_ns == from_ns) {
    if (steps_[at].bytes == steps_[at - 1].bytes) steps_.erase(steps_.begin() + static_cast<std::ptrdiff_t>(at));
    return;
  }
  steps_.insert(steps_.begin() + static_cast<std::ptrdiff_t>(at),
                {.at_ns = from_ns, .bytes = steps_[at - 1].bytes + bytes});
}

std::int64_t Room::fits_for_good(std::int64_t from_ns, std::int64_t bytes) const {
  const std::int64_t most = capacity_bytes_ - bytes;
  std::size_t at = steps_.size();
  if (steps_[at - 1].bytes > most) return kNever;
  while (at > 0 && steps_[at - 1].bytes <= most && steps_[at - 1].at_ns > from_ns) --at;
  if (at == 0 || steps_[at - 1].bytes <= most) return from_ns;
  return std::max(from_ns, steps_[at].at_ns);
}

std::int64_t Room::fits_until(std::int64_t from_ns, std::int64_t until_ns, std::int64_t bytes) const {
  const std::int64_t most = capacity_bytes_ - bytes;
  std::size_t at = steps_.size();
  while (at > 0 && steps_[at - 1].at_ns >= until_ns) --at;
  std::int64_t begin_ns = until_ns;
  for (; at > 0 && steps_[at - 1].bytes <= most; --at) {
    begin_ns = steps_[at - 1].at_ns;
    if (begin_ns <= from_ns) return from_ns;
  }
  return begin_ns;
}

}  // namespace terrace::timetable
