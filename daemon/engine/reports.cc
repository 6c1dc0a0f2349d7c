// SPDX-License-Identifier: Apache-2.0
#include "engine/reports.h"

#include <algorithm>

#include "engine/values/status.h"

namespace terrace::engine {

TierStatus Reports::tier_status(TierId at) const {
  const Tier& tier = tiers_[at];
  TierStatus out;
  out.name = tier.options.name;
  out.kind = tier.options.kind;
  out.capacity_bytes = tier.options.capacity_bytes;
  out.used_bytes = tier.used_bytes;
  out.checksum_failures = tier.checksum_failures;
  out.io_errors = tier.io_errors;
  out.lost_tensors = tier.lost_tensors;
  out.evictions = tier.evictions;
  if (!tier.mapped()) {
    out.largest_free_bytes = block_.space.largest_free_bytes();
    out.fragmentation = block_.space.fragmentation();
    out.retired_bytes = block_.space.retired_bytes();
    if (links_.outage.lasts()) out.write_failure = links_.outage.why().message;
    out.write_outages = links_.outage.count();
    out.write_budget_bytes_per_day = tier.options.write_budget_bytes_per_day;
    out.write_budget_left_bytes = links_.write_budget.left_bytes(turn_.now);
    return out;
  }
  out.guaranteed_bytes = budget_.claimed_bytes(at);
  out.stitches = tier.options.stitches;
  std::uint64_t free = 0;
  std::uint64_t joined = 0;
  for (const auto& [id, session] : registry_.all) {
    const Place& place = *session->places[at];
    out.segment_bytes += place.mapped_bytes();
    free += place.space.free_bytes();
    joined += place.space.largest_free_bytes();
    const std::uint64_t tail = place.space.capacity_bytes() - place.space.free_tail_offset();
    const std::uint64_t limit = budget_.limit_bytes(*session, at);
    const std::uint64_t growable = limit - std::min(limit, place.space.capacity_bytes());
    const std::uint64_t apart = tier.options.stitches ? place.space.free_bytes() + growable : 0;
    out.largest_free_bytes =
        std::max({out.largest_free_bytes, place.space.largest_free_bytes(), tail + growable, apart});
    for (const auto& [offset, seam] : place.seams) out.stitched_bytes += seam.bytes;
  }
  if (registry_.all.empty()) out.largest_free_bytes = out.capacity_bytes;
  if (free > 0) out.fragmentation = 1.0 - static_cast<double>(joined) / static_cast<double>(free);
  return out;
}

SessionStatus Reports::session_status(const Session& session) const {
  SessionStatus out{.session = session.id,
                    .tenant = session.tenant,
                    .pid = session.is_share() ? 0 : session.members.front().pid,
                    .label = session.is_share() ? session.share : session.members.front().label,
                    .members = {},
                    .tensors = session.tensor_count,
                    .tensor_bytes = session.tensor_bytes,
                    .step = session.step,
                    .matched = session.foreseen.matched,
                    .strayed = session.foreseen.strayed,
                    .planned_bytes = session.foreseen.planned_bytes,
                    .demanded_bytes = session.foreseen.demanded_bytes,
                    .places = {}};
  if (const foresight::Plan* plan = session.foreseen.plan.get()) {
    out.plan = plan->number;
    out.plan_kind = plan->kind;
    out.plan_uses = plan->uses.size();
    out.plan_match = plan->match;
  }
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || tensor.published == Level::kNone) continue;
    const shm::Word held = session.word(Slot{at});
    out.leases += held.readers + held.writers;
    if (held.leased()) out.leased_bytes += tensor.bytes;
  }
  if (session.is_share())
    for (const Member& member : session.members)
      out.members.push_back({member.id, member.pid, member.label, holders_.leases_of(session, member), member.writes});
  for (const TierId tier : tiers_.ids()) {
    if (session.places[tier] == nullptr) continue;
    const Place& place = *session.places[tier];
    std::uint64_t used = 0;
    for (const Tensor& tensor : session.tensors.all())
      if (tensor.live() && tiers_.at_tier(tensor, tier)) used += tensor.extent_bytes();
    out.places.push_back({tiers_[tier].place, place.floor_bytes, place.mapped_bytes(), used});
  }
  return out;
}

Status Reports::status() const {
  Status out;
  out.draining = registry_.draining;
  out.prefetches = counts_.prefetches;
  out.foresight = counts_.foresight;
  out.steps = ledger_.steps;
  out.requests_waiting = requests_.size();
  out.restored = counts_.restored;
  for (const TierId tier : tiers_.ids()) {
    out.tiers.push_back(tier_status(tier));
    if (tiers_[tier].mapped()) out.places.push_back(tiers_[tier].leases);
  }
  for (const auto& [link, counted] : links_.status) {
    LinkStatus& status = out.links.emplace_back(counted);
    status.queued = links_.scheduler.queued(link);
    status.in_flight = links_.scheduler.in_flight(link);
  }
  for (const auto& [id, session] : registry_.all) out.sessions.push_back(session_status(session_of(*session)));
  return out;
}

}  // namespace terrace::engine
