// SPDX-License-Identifier: Apache-2.0
#include "timetable/filling.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "foresight/occupancy.h"

namespace terrace::timetable {
namespace {

// One tier's bytes at each run, and after it.
class Filled {
 public:
  Filled(const workload::Workload& workload, workload::Place place, double capacity_bytes)
      : positions_(static_cast<std::uint32_t>(2 * workload.runs.size())),
        capacity_bytes_(static_cast<std::int64_t>(std::min(capacity_bytes, 4e18))),
        bytes_(leased(workload, place)) {}

  bool take(const Gap& gap) {
    const auto bytes = static_cast<std::int64_t>(gap.bytes);
    const std::uint32_t begin = 2 * gap.from_run + 1;
    const std::uint32_t end = 2 * gap.to_run;
    const std::array ranges =
        gap.around ? std::array{Range{begin, positions_}, Range{0, end}} : std::array{Range{begin, end}, Range{0, 0}};
    const auto fits = [&](const Range& range) {
      return range.begin >= range.end ||
             bytes_.first_below(range.begin, range.end, capacity_bytes_ - bytes) == range.begin;
    };
    if (!std::ranges::all_of(ranges, fits)) return false;
    for (const Range& range : ranges)
      if (range.begin < range.end) bytes_.add(range.begin, range.end, bytes);
    return true;
  }

 private:
  struct Range {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };
  static std::vector<std::int64_t> leased(const workload::Workload& workload, workload::Place place) {
    std::vector<std::int64_t> bytes(2 * workload.runs.size());
    for (std::size_t run = 0; run < workload.runs.size(); ++run)
      if (workload.runs[run].place == place)
        bytes[2 * run] = static_cast<std::int64_t>(workload::leased_bytes(workload, workload.runs[run]));
    return bytes;
  }

  std::uint32_t positions_;
  std::int64_t capacity_bytes_;
  foresight::Occupancy bytes_;
};

std::vector<GapId> by_length(const workload::Workload& workload, const Gaps& gaps, const Clock& clock) {
  std::vector<std::pair<std::int64_t, GapId>> order;
  for (GapId id = 0; id < gaps.gaps.size(); ++id) {
    const Gap& gap = gaps.gaps[id];
    if (!gap.live) continue;
    const std::int64_t from_ns = clock.begins_ns[gap.from_run] + workload.runs[gap.from_run].compute.count();
    const std::int64_t to_ns = clock.begins_ns[gap.to_run] + (gap.around ? clock.period_ns : 0);
    order.emplace_back(to_ns - from_ns, id);
  }
  std::ranges::sort(order);
  std::vector<GapId> ids;
  for (const auto& [length, id] : order) ids.push_back(id);
  return ids;
}

}  // namespace

Rests fill(const workload::Workload& workload, const workload::Node& node, const Gaps& gaps, const Clock& clock,
           const Spare& spare) {
  std::array filled = {
      Filled(workload, workload::Place::kHbm, static_cast<double>(node.hbm_bytes) * (1 - spare.hbm)),
      Filled(workload, workload::Place::kHost, static_cast<double>(node.host_bytes) * (1 - spare.host))};
  Rests rests(gaps.gaps.size(), node.block_bytes > 0 ? Tier::kBlock : Tier::kHost);
  for (const GapId id : by_length(workload, gaps, clock)) {
    const Gap& gap = gaps.gaps[id];
    const bool of_hbm = gap.from == Tier::kHbm && gap.to == Tier::kHbm;
    for (const Tier tier : {of_hbm ? Tier::kHbm : Tier::kHost, of_hbm ? Tier::kHost : Tier::kHbm}) {
      if (!filled[static_cast<std::size_t>(tier)].take(gap)) continue;
      rests[id] = tier;
      break;
    }
  }
  return rests;
}

}  // namespace terrace::timetable
