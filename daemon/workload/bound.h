// SPDX-License-Identifier: Apache-2.0
// What a workload must at least cost on a node, whoever decides what moves when (docs/internals/lower-bound.md).
#pragma once

#include <cstdint>
#include <string_view>

#include "terrace/error.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::workload {

// Consecutive runs, around the end too, in which more must be moved one way than there is time to compute. `step` is
// what they make of the whole repetition: 0, and then the runs say nothing, where memory holds what they want or owe.
struct Window {
  Duration step{};
  std::size_t first = 0;  // run
  std::size_t last = 0;   // run; before `first` where the window goes around the end
};

// What one link must at least do. For the link between HBM and host, memory is HBM; for the block link it is HBM and
// host together.
struct LinkBound {
  std::uint64_t fewest_in_bytes = 0;  // that any schedule moves, on average over repetitions
  std::uint64_t fewest_out_bytes = 0;
  Duration in{};  // how long that takes at the link's bandwidth, latencies left away
  Duration out{};
  Duration both{};  // of those two on one link, as far as they slow each other down
  // In which most must come: what it reads first must be in memory when it begins, or come in.
  Window window_in;
  // In which most must leave: what is born in it and still needed at its end, over what memory holds.
  Window window_out;
  std::uint64_t fewest_bytes(Direction direction) const {
    return direction == Direction::kIn ? fewest_in_bytes : fewest_out_bytes;
  }
};

enum class Limit : std::uint8_t {
  kCompute,
  kHbmIn,
  kHbmOut,
  kHbmBoth,
  kHbmWindowIn,
  kHbmWindowOut,
  kBlockIn,
  kBlockOut,
  kBlockBoth,
  kBlockWindowIn,
  kBlockWindowOut
};
inline constexpr std::array<std::string_view, 11> kLimitNames = {
    "compute",  "hbm in",    "hbm out",    "hbm both",        "hbm window in",   "hbm window out",
    "block in", "block out", "block both", "block window in", "block window out"};
constexpr std::string_view name(Limit limit) { return kLimitNames[static_cast<std::size_t>(limit)]; }

// Of one repetition of the workload: all of its steps. It holds for the mean of repetitions: one of them alone can be
// shorter, by what was moved for it before it began.
struct Bound {
  Duration total{};  // the largest of the others
  Limit limit{};     // which one that is
  Duration compute{};
  LinkBound hbm;
  LinkBound block;
  // The window that `limit` speaks of; nullptr where it speaks of none.
  const Window* window() const;
  // The largest of those that count bytes over a whole repetition, and the largest of those of windows.
  Duration by_links() const;
  Duration by_windows() const;
};

// The bound of `workload` (as read() returns it) on `node`. Takes the time of a few dozen minimum-cost flows with a
// node for each run and an arc for each use of a tensor: milliseconds for thousands of runs. InvalidArgument naming the
// run where one does not fit its place even alone.
Result<Bound> lower_bound(const Workload& workload, const Node& node);

}  // namespace terrace::workload
