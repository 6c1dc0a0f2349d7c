// SPDX-License-Identifier: Apache-2.0
// When one direction of a link is taken. Times are nanoseconds. Internal to timetable.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::timetable {

class Lane {
 public:
  // The earliest begin, from `from_ns` on, of a stretch of `length_ns` that is free.
  std::int64_t earliest(std::int64_t from_ns, std::int64_t length_ns) const;
  // The latest begin of one that ends by `until_ns` and begins at `from_ns` or after; below `from_ns` if there is none.
  std::int64_t latest(std::int64_t from_ns, std::int64_t until_ns, std::int64_t length_ns) const;
  // It must be free.
  void take(std::int64_t begin_ns, std::int64_t length_ns);
  void clear() { taken_.clear(); }

 private:
  struct Taken {
    std::int64_t begin_ns = 0;
    std::int64_t end_ns = 0;
  };
  std::size_t after(std::int64_t at_ns) const;  // the first that ends after it

  std::vector<Taken> taken_;  // in order; none touches the next
};

}  // namespace terrace::timetable
