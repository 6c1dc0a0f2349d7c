// SPDX-License-Identifier: Apache-2.0
#include "workload/bound.h"

#include <fmt/format.h>

#include <algorithm>

#include "workload/fewest.h"
#include "workload/items.h"
#include "workload/window.h"

namespace terrace::workload {
namespace {

Duration time_of(std::uint64_t bytes, std::uint64_t bytes_per_s) {
  if (bytes == 0) return Duration{};
  return Duration(static_cast<std::int64_t>(static_cast<double>(bytes) / static_cast<double>(bytes_per_s) * 1e9));
}

LinkBound link_bound(const Workload& workload, LinkName name, const LinkSpeed& speed, std::uint64_t capacity_bytes) {
  LinkBound bound;
  bound.fewest_in_bytes = fewest_bytes(inward(workload, name), capacity_bytes);
  bound.fewest_out_bytes = fewest_bytes(outward(workload, name), capacity_bytes);
  bound.in = time_of(bound.fewest_in_bytes, speed.in_bytes_per_s);
  bound.out = time_of(bound.fewest_out_bytes, speed.out_bytes_per_s);
  const auto [shorter, longer] = std::minmax(bound.in, bound.out);
  bound.both =
      longer + Duration(static_cast<std::int64_t>(static_cast<double>(shorter.count()) * speed.both_ways().toll()));
  bound.window_in =
      longest_window(workload.runs, wanted(workload, name), capacity_bytes, speed.in_bytes_per_s, Direction::kIn);
  bound.window_out =
      longest_window(workload.runs, owed(workload, name), capacity_bytes, speed.out_bytes_per_s, Direction::kOut);
  return bound;
}

Result<void> check_runs(const Workload& workload, const Node& node) {
  for (std::size_t index = 0; index < workload.runs.size(); ++index) {
    const Run& run = workload.runs[index];
    const std::uint64_t needed = leased_bytes(workload, run);
    const std::uint64_t capacity = node.capacity_bytes(run.place);
    if (needed <= capacity) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: run {}, \"{}\", needs {} bytes in {} at once, which has {} on node {}", workload.name,
                            index, run.name, needed, name(run.place), capacity, node.name));
  }
  return {};
}

}  // namespace

Duration Bound::by_links() const { return std::max({hbm.in, hbm.out, hbm.both, block.in, block.out, block.both}); }

Duration Bound::by_windows() const {
  return std::max({hbm.window_in.step, hbm.window_out.step, block.window_in.step, block.window_out.step});
}

const Window* Bound::window() const {
  switch (limit) {
    case Limit::kHbmWindowIn:
      return &hbm.window_in;
    case Limit::kHbmWindowOut:
      return &hbm.window_out;
    case Limit::kBlockWindowIn:
      return &block.window_in;
    case Limit::kBlockWindowOut:
      return &block.window_out;
    default:
      return nullptr;
  }
}

Result<Bound> lower_bound(const Workload& workload, const Node& node) {
  if (const Result<void> checked = check_runs(workload, node); !checked) return std::unexpected(checked.error());
  Bound bound;
  bound.compute = compute_time(workload.runs);
  if (node.host_bytes > 0) bound.hbm = link_bound(workload, LinkName::kHbm, node.hbm, node.hbm_bytes);
  if (node.block_bytes > 0) {
    bound.block = link_bound(workload, LinkName::kBlock, node.block, add_capacity(node.hbm_bytes, node.host_bytes));
  }
  const std::array parts = {bound.compute,
                            bound.hbm.in,
                            bound.hbm.out,
                            bound.hbm.both,
                            bound.hbm.window_in.step,
                            bound.hbm.window_out.step,
                            bound.block.in,
                            bound.block.out,
                            bound.block.both,
                            bound.block.window_in.step,
                            bound.block.window_out.step};
  const auto longest = std::ranges::max_element(parts);
  bound.total = *longest;
  bound.limit = static_cast<Limit>(longest - parts.begin());
  return bound;
}

}  // namespace terrace::workload
