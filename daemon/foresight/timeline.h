// SPDX-License-Identifier: Apache-2.0
// When one direction of a link is free. Transfers may be interrupted for others, so that a piece of work takes any free
// time within its window.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace terrace::foresight {

struct Span {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

class Timeline {
 public:
  Timeline();

  // Takes `work_ns` of the free time within the window, the earliest there is; none if there is too little.
  std::optional<Span> take_earliest(Span window, std::int64_t work_ns);
  // The latest there is.
  std::optional<Span> take_latest(Span window, std::int64_t work_ns);
  // Whether there is enough of it.
  bool has(Span window, std::int64_t work_ns) const { return find_latest(window, work_ns).has_value(); }

 private:
  static constexpr int kLooksMax = 256;  // at free intervals, a call

  using Free = std::map<std::int64_t, std::int64_t>;  // begin -> end, disjoint, none empty

  struct Found {
    Free::const_iterator first;
    Free::const_iterator past;
    Span taken;
  };
  std::optional<Found> find_latest(Span window, std::int64_t work_ns) const;
  // Of the intervals from `first` up to `past`, what lies before and after `taken` stays free.
  Span cut(Free::const_iterator first, Free::const_iterator past, Span taken);

  Free free_;
};

}  // namespace terrace::foresight
