// SPDX-License-Identifier: Apache-2.0
#include "timetable/gaps.h"

#include <algorithm>

namespace terrace::timetable {
namespace {

void link_uses(const workload::Workload& workload, const std::vector<std::uint32_t>& run_of,
               const std::vector<std::uint32_t>& uses_of_tensor, Gaps& gaps) {
  const std::size_t count = uses_of_tensor.size();
  const auto first = static_cast<GapId>(gaps.gaps.size());
  for (std::size_t at = 0; at < count; ++at) {
    const std::uint32_t here = uses_of_tensor[at];
    const std::uint32_t there = uses_of_tensor[(at + 1) % count];
    Use& use = gaps.uses[here];
    Use& next = gaps.uses[there];
    const workload::Run& from = workload.runs[run_of[here]];
    const workload::Run& to = workload.runs[run_of[there]];
    use.after = first + static_cast<GapId>(at);
    next.before = use.after;
    gaps.gaps.push_back({.tensor = use.tensor,
                         .from_run = run_of[here],
                         .to_run = run_of[there],
                         .from = tier_of(from.place),
                         .to = tier_of(to.place),
                         .live = !use.free && next.read,
                         .written = use.write,
                         .freed = use.free,
                         .to_write = next.write,
                         .around = at + 1 == count,
                         .bytes = workload.tensors[use.tensor].bytes,
                         .next = first + static_cast<GapId>((at + 1) % count)});
  }
}

}  // namespace

Gaps gaps_of(const workload::Workload& workload) {
  Gaps gaps;
  std::vector<std::vector<std::uint32_t>> by_tensor(workload.tensors.size());
  std::vector<std::uint32_t> run_of;
  for (std::size_t index = 0; index < workload.runs.size(); ++index) {
    const workload::Run& run = workload.runs[index];
    gaps.first_use.push_back(static_cast<std::uint32_t>(gaps.uses.size()));
    const auto use_of = [&](workload::TensorId id) -> Use& {
      std::vector<std::uint32_t>& uses = by_tensor[id];
      if (uses.empty() || run_of[uses.back()] != index) {
        uses.push_back(static_cast<std::uint32_t>(gaps.uses.size()));
        gaps.uses.push_back({.tensor = id});
        run_of.push_back(static_cast<std::uint32_t>(index));
      }
      return gaps.uses[uses.back()];
    };
    for (const workload::TensorId id : run.read) use_of(id).read = true;
    for (const workload::TensorId id : run.write) use_of(id).write = true;
    for (const workload::TensorId id : run.free) use_of(id).free = true;
  }
  gaps.first_use.push_back(static_cast<std::uint32_t>(gaps.uses.size()));
  for (const auto& uses : by_tensor)
    if (!uses.empty()) link_uses(workload, run_of, uses, gaps);
  return gaps;
}

}  // namespace terrace::timetable
