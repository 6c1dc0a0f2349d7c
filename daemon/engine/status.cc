// SPDX-License-Identifier: Apache-2.0
// What the engine says of itself.
#include "engine/values/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "engine/engine_impl.h"

namespace terrace::engine {

double Histogram::upper_bound_seconds(std::size_t bucket) {
  if (bucket + 1 >= kBuckets) return std::numeric_limits<double>::infinity();
  double bound = 1e-6;
  for (std::size_t i = 0; i < bucket; ++i) bound *= 4;
  return bound;
}

void Histogram::record(Duration duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  std::size_t bucket = 0;
  while (bucket + 1 < kBuckets && seconds > upper_bound_seconds(bucket)) ++bucket;
  ++counts[bucket];
  sum_seconds += seconds;
}

void EngineImpl::on(const Request& request, const MarkStep& body) {
  constexpr std::uint32_t kLastKind = 2;
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  if (body.kind > kLastKind)
    return answer(request.id, fail(ErrorCode::kInvalidArgument,
                                   fmt::format("step kind {}: give 0 (train), 1 (accumulate) or 2 (eval)", body.kind)));
  if (const auto room = check_note(**session, request.session, 0); !room)
    return answer(request.id, std::unexpected(room.error()));
  note(**session,
       {.request = static_cast<std::uint64_t>(request.id),
        .session = static_cast<std::uint32_t>(request.session),
        .kind = GrantRecord::Kind::kStep,
        .value = static_cast<std::uint32_t>((*session)->step + 1)},
       {});
  ++(*session)->step;
  ++steps_;
  observe_step(**session, body.kind);
  step_over(**session);
  touch(**session);
  answer(request.id, ReplyBody{Done{}});
}

void EngineImpl::on(const Request& request, const GetStatus&) { answer(request.id, ReplyBody{status()}); }

void EngineImpl::on(const Request& request, const Drain&) {
  draining_ = true;
  answer(request.id, ReplyBody{Done{}});
}

TierStatus EngineImpl::tier_status(std::size_t index) const {
  const Tier& tier = tiers_[index];
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
    out.largest_free_bytes = block_space_.largest_free_bytes();
    out.fragmentation = block_space_.fragmentation();
    out.retired_bytes = block_space_.retired_bytes();
    out.write_budget_bytes_per_day = tier.options.write_budget_bytes_per_day;
    out.write_budget_left_bytes = write_budget_.left_bytes(now_);
    return out;
  }
  out.guaranteed_bytes = claimed_bytes(index);
  out.stitches = tier.options.stitches;
  std::uint64_t free = 0;
  std::uint64_t joined = 0;
  for (const auto& [id, session] : sessions_) {
    const Place& place = *session->places[index];
    out.segment_bytes += place.mapped_bytes();
    free += place.space.free_bytes();
    joined += place.space.largest_free_bytes();
    const std::uint64_t tail = place.space.capacity_bytes() - place.space.free_tail_offset();
    const std::uint64_t limit = limit_bytes(*session, index);
    const std::uint64_t growable = limit - std::min(limit, place.space.capacity_bytes());
    const std::uint64_t apart = tier.options.stitches ? place.space.free_bytes() + growable : 0;
    out.largest_free_bytes =
        std::max({out.largest_free_bytes, place.space.largest_free_bytes(), tail + growable, apart});
    for (const auto& [offset, seam] : place.seams) out.stitched_bytes += seam.bytes;
  }
  if (sessions_.empty()) out.largest_free_bytes = out.capacity_bytes;
  if (free > 0) out.fragmentation = 1.0 - static_cast<double>(joined) / static_cast<double>(free);
  return out;
}

SessionStatus EngineImpl::session_status(const Session& session) const {
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
      out.members.push_back({member.id, member.pid, member.label, leases_of(session, member), member.writes});
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (session.places[tier] == nullptr) continue;
    const Place& place = *session.places[tier];
    std::uint64_t used = 0;
    for (const Tensor& tensor : session.tensors.all())
      if (tensor.live() && at_tier(tensor, tier)) used += tensor.extent_bytes();
    out.places.push_back({tiers_[tier].place, place.floor_bytes, place.mapped_bytes(), used});
  }
  return out;
}

Status EngineImpl::status() const {
  Status out;
  out.draining = draining_;
  out.prefetches = prefetches_;
  out.foresight = foresight_;
  out.steps = steps_;
  out.requests_waiting = waiting_.size();
  out.restored = restored_;
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    out.tiers.push_back(tier_status(tier));
    if (tiers_[tier].mapped()) out.places.push_back(tiers_[tier].leases);
  }
  for (const auto& [link, counted] : link_status_) {
    LinkStatus& status = out.links.emplace_back(counted);
    status.queued = scheduler_.queued(link);
    status.in_flight = scheduler_.in_flight(link);
  }
  for (const auto& [id, session] : sessions_) out.sessions.push_back(session_status(*session));
  return out;
}

}  // namespace terrace::engine
