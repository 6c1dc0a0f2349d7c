// SPDX-License-Identifier: Apache-2.0
// Where content goes after a use, and how it comes before one.
#include <algorithm>

#include "timetable/layout.h"

namespace terrace::timetable {
namespace {

constexpr int kTriesMax = 64;  // to find a time that suits two links and a tier between them

}  // namespace

bool Layout::go(GapId id) {
  const Gap& gap = gaps_.gaps[id];
  if (!gap.live) {
    for (const Tier tier : {Tier::kHbm, Tier::kHost})
      if (copy(gap.tensor, tier).there) leave_for(id, tier);
    return true;
  }
  const Tier rest = (*rests_)[id];
  if (rest == Tier::kBlock) return go_to_block(id);
  if (rest == Tier::kHost) return gap.from == Tier::kHost || go_to_host(id);
  if (gap.from == Tier::kHost) return go_up(id);
  if (copy(gap.tensor, Tier::kHost).there && !keeps_below_) leave_for(id, Tier::kHost);
  return true;
}

// The copy in `tier` goes once the others of its tensor, if any, are complete.
void Layout::leave_for(GapId id, Tier tier) {
  const Gap& gap = gaps_.gaps[id];
  std::vector<Moment> after{end_of(gap.from_run)};
  std::int64_t at_ns = now_ns_;
  for (const Tier other : kAllTiers) {
    const Copy& stays = copy(gap.tensor, other);
    if (other == tier || !stays.there) continue;
    after.push_back(stays.ready);
    at_ns = std::max(at_ns, stays.ready_ns);
  }
  give_up(id, tier == Tier::kHbm ? End::kHbm : End::kHostGoing, tier, at_ns, std::move(after));
}

// A move as early as link and room for good allow, and no earlier than the last copy there is gone. When the copy is
// there; kNever if it cannot be.
std::int64_t Layout::move_for_good(GapId id, Hop hop, Tier from, Tier to, std::int64_t from_ns) {
  const Gap& gap = gaps_.gaps[id];
  const std::int64_t fits_ns =
      room(to).fits_for_good(std::max(from_ns, copy(gap.tensor, to).gone_ns), static_cast<std::int64_t>(gap.bytes));
  if (fits_ns == kNever) return never(to);
  Link& over = link(from, to);
  return move(id, hop, from, to, over.lane.earliest(fits_ns, length_ns(over, gap.bytes)));
}

bool Layout::go_up(GapId id) {
  if (move_for_good(id, Hop::kGoUp, Tier::kHost, Tier::kHbm, now_ns_) == kNever) return false;
  leave_for(id, Tier::kHost);
  return true;
}

bool Layout::go_to_host(GapId id) {
  if (!copy(gaps_.gaps[id].tensor, Tier::kHost).there &&
      move_for_good(id, Hop::kGoDown, Tier::kHbm, Tier::kHost, now_ns_) == kNever)
    return false;
  leave_for(id, Tier::kHbm);
  return true;
}

bool Layout::go_to_block(GapId id) {
  const Gap& gap = gaps_.gaps[id];
  if (!copy(gap.tensor, Tier::kBlock).there) {
    if (!copy(gap.tensor, Tier::kHost).there && !go_by_host(id)) return false;
    Link& out = link(Tier::kHost, Tier::kBlock);
    const std::int64_t from_ns = std::max(now_ns_, copy(gap.tensor, Tier::kHost).ready_ns);
    move(id, Hop::kGoBlock, Tier::kHost, Tier::kBlock, out.lane.earliest(from_ns, length_ns(out, gap.bytes)));
  }
  for (const Tier tier : {Tier::kHbm, Tier::kHost})
    if (copy(gap.tensor, tier).there) leave_for(id, tier);
  return true;
}

// Down to host memory, where there is room until the next move can end.
bool Layout::go_by_host(GapId id) {
  const Gap& gap = gaps_.gaps[id];
  Link& down = link(Tier::kHbm, Tier::kHost);
  Link& out = link(Tier::kHost, Tier::kBlock);
  const std::int64_t down_ns = length_ns(down, gap.bytes);
  const std::int64_t out_ns = length_ns(out, gap.bytes);
  std::int64_t begin_ns = std::max(now_ns_, copy(gap.tensor, Tier::kHost).gone_ns);
  for (int tries = 0; tries < kTriesMax; ++tries) {
    begin_ns = down.lane.earliest(begin_ns, down_ns);
    const std::int64_t until_ns =
        out.lane.earliest(begin_ns + down_ns + down.latency_ns, out_ns) + out_ns + out.latency_ns;
    const std::int64_t fits_ns = room(Tier::kHost).fits_until(begin_ns, until_ns, static_cast<std::int64_t>(gap.bytes));
    if (fits_ns > begin_ns) {
      begin_ns = fits_ns;
      continue;
    }
    move(id, Hop::kGoDown, Tier::kHbm, Tier::kHost, begin_ns);
    if (copy(gap.tensor, Tier::kHbm).there) leave_for(id, Tier::kHbm);
    return true;
  }
  return fail(Tier::kHost);
}

// When it is there; kNever if it cannot be.
std::int64_t Layout::fetch(GapId id, std::int64_t until_ns) {
  const Gap& gap = gaps_.gaps[id];
  if (gap.to == Tier::kHbm) return copy(gap.tensor, Tier::kHost).there ? come_up(id) : come_from_block(id);
  return copy(gap.tensor, Tier::kHbm).there ? come_down(id, until_ns) : come_to_host_from_block(id);
}

// Whether the copy in host memory stays when what comes up at the end of the gap is in HBM.
bool Layout::keeps_host_copy(GapId id) const {
  const Gap& gap = gaps_.gaps[id];
  const Gap& next = gaps_.gaps[gap.next];
  return keeps_below_ && !gap.to_write && next.live && (*rests_)[gap.next] == Tier::kHost;
}

std::int64_t Layout::come_up(GapId id) {
  const workload::TensorId tensor = gaps_.gaps[id].tensor;
  const std::int64_t there_ns =
      move_for_good(id, Hop::kComeUp, Tier::kHost, Tier::kHbm, copy(tensor, Tier::kHost).ready_ns);
  if (there_ns != kNever && !keeps_host_copy(id))
    give_up(id, End::kHostComing, Tier::kHost, there_ns, {copy(tensor, Tier::kHbm).ready});
  return there_ns;
}

std::int64_t Layout::come_down(GapId id, std::int64_t until_ns) {
  const Gap& gap = gaps_.gaps[id];
  Link& down = link(Tier::kHbm, Tier::kHost);
  const std::int64_t length = length_ns(down, gap.bytes);
  const std::int64_t from_ns = std::max(copy(gap.tensor, Tier::kHbm).ready_ns, copy(gap.tensor, Tier::kHost).gone_ns);
  const std::int64_t fits_ns = room(Tier::kHost).fits_for_good(from_ns, static_cast<std::int64_t>(gap.bytes));
  if (fits_ns == kNever) return never(Tier::kHost);
  std::int64_t begin_ns = down.lane.latest(fits_ns, until_ns - down.latency_ns, length);
  if (begin_ns < fits_ns) begin_ns = down.lane.earliest(fits_ns, length);
  const std::int64_t there_ns = move(id, Hop::kComeDown, Tier::kHbm, Tier::kHost, begin_ns);
  give_up(id, End::kHbm, Tier::kHbm, there_ns, {copy(gap.tensor, Tier::kHost).ready});
  return there_ns;
}

std::int64_t Layout::come_to_host_from_block(GapId id) {
  const std::int64_t ready_ns = copy(gaps_.gaps[id].tensor, Tier::kBlock).ready_ns;
  return move_for_good(id, Hop::kComeHost, Tier::kBlock, Tier::kHost, ready_ns);
}

// By two moves; it waits in host memory until there is room for good in HBM.
std::int64_t Layout::come_from_block(GapId id) {
  const Gap& gap = gaps_.gaps[id];
  const auto bytes = static_cast<std::int64_t>(gap.bytes);
  Link& in = link(Tier::kBlock, Tier::kHost);
  Link& up = link(Tier::kHost, Tier::kHbm);
  const std::int64_t in_ns = length_ns(in, gap.bytes);
  const std::int64_t up_ns = length_ns(up, gap.bytes);
  const std::int64_t fits_above_ns = room(Tier::kHbm).fits_for_good(copy(gap.tensor, Tier::kHbm).gone_ns, bytes);
  if (fits_above_ns == kNever) return never(Tier::kHbm);
  const bool keeps = keeps_host_copy(id);
  std::int64_t begin_ns = std::max(copy(gap.tensor, Tier::kBlock).ready_ns, copy(gap.tensor, Tier::kHost).gone_ns);
  for (int tries = 0; tries < kTriesMax && begin_ns < kNever; ++tries) {
    begin_ns = in.lane.earliest(begin_ns, in_ns);
    const std::int64_t then_ns = up.lane.earliest(std::max(fits_above_ns, begin_ns + in_ns + in.latency_ns), up_ns);
    const std::int64_t fits_ns = keeps ? room(Tier::kHost).fits_for_good(begin_ns, bytes)
                                       : room(Tier::kHost).fits_until(begin_ns, then_ns + up_ns + up.latency_ns, bytes);
    if (fits_ns > begin_ns) {
      begin_ns = fits_ns;
      continue;
    }
    move(id, Hop::kComeHost, Tier::kBlock, Tier::kHost, begin_ns);
    const std::int64_t there_ns = move(id, Hop::kComeUp, Tier::kHost, Tier::kHbm, then_ns);
    if (!keeps) give_up(id, End::kHostComing, Tier::kHost, there_ns, {copy(gap.tensor, Tier::kHbm).ready});
    return there_ns;
  }
  return never(Tier::kHost);
}

}  // namespace terrace::timetable
