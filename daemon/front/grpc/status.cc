// SPDX-License-Identifier: Apache-2.0
// The part of convert.h that says what the engine says of itself.
#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "front/grpc/convert.h"
#include "mover/link_name.h"
#include "shm/layout.h"

namespace terrace::front {
namespace {

void from_histogram(const engine::Histogram& histogram, v1::Histogram& out) {
  for (std::size_t i = 0; i + 1 < engine::Histogram::kBuckets; ++i)
    out.add_upper_bound_seconds(engine::Histogram::upper_bound_seconds(i));
  for (const std::uint64_t count : histogram.counts) out.add_counts(count);
  out.set_sum_seconds(histogram.sum_seconds);
}

void from_tier(const engine::TierStatus& tier, v1::TierStatus& out) {
  out.set_name(tier.name);
  out.set_capacity_bytes(tier.capacity_bytes);
  out.set_used_bytes(tier.used_bytes);
  out.set_segment_bytes(tier.segment_bytes);
  out.set_guaranteed_bytes(tier.guaranteed_bytes);
  out.set_largest_free_bytes(tier.largest_free_bytes);
  out.set_fragmentation_ratio(tier.fragmentation);
  out.set_retired_bytes(tier.retired_bytes);
  out.set_checksum_failures(tier.checksum_failures);
  out.set_io_errors(tier.io_errors);
  out.set_lost_tensors(tier.lost_tensors);
  out.set_failure(tier.failure);
  out.set_write_failure(tier.write_failure);
  out.set_write_outages(tier.write_outages);
  out.set_context_bytes(tier.context_bytes);
  out.set_stitched_bytes(tier.stitched_bytes);
  out.set_guarantees_any_order(tier.stitches);
  const auto evictions = [&](engine::EvictionReason reason) {
    return tier.evictions[static_cast<std::size_t>(reason)];
  };
  v1::EvictionCounts& counts = *out.mutable_evictions();
  counts.set_demand(evictions(engine::EvictionReason::kDemand));
  counts.set_prefetch(evictions(engine::EvictionReason::kPrefetch));
  counts.set_hint(evictions(engine::EvictionReason::kHint));
  counts.set_move(evictions(engine::EvictionReason::kMove));
  counts.set_taken_back(evictions(engine::EvictionReason::kTakenBack));
}

void from_link(const engine::LinkStatus& link, v1::LinkStatus& out) {
  out.set_name(mover::name(link.link));
  out.set_bytes(link.bytes);
  out.set_transfers(link.transfers);
  out.set_failures(link.failures);
  out.set_queued(link.queued);
  out.set_in_flight(link.in_flight);
  from_histogram(link.duration, *out.mutable_duration());
}

// The place behind which a tier stands: "device:N" by its number.
void place_of_tier(const engine::TierStatus& tier, v1::Place& out) {
  switch (tier.kind) {
    case tier::Kind::kMemory:
      return from_place(shm::kPlaceHost, out);
    case tier::Kind::kBlock:
      return from_place(shm::kPlaceBlock, out);
    case tier::Kind::kDevice:
      out.set_kind(v1::PLACE_KIND_DEVICE);
      const auto colon = tier.name.rfind(':');
      if (colon != std::string::npos)
        out.set_device(static_cast<std::uint32_t>(std::strtoul(tier.name.c_str() + colon + 1, nullptr, 10)));
  }
}

void from_foresight(const engine::SessionStatus& session, v1::SessionForesight& out) {
  out.set_template_(session.plan);
  out.set_step_kind(session.plan_kind);
  out.set_template_uses(session.plan_uses);
  out.set_matched_uses(session.plan_match.matched);
  out.set_missed_uses(session.plan_match.missed);
  out.set_added_uses(session.plan_match.added);
  out.set_foreseen_uses(session.matched);
  out.set_stray_uses(session.strayed);
  out.set_planned_bytes(session.planned_bytes);
  out.set_demanded_bytes(session.demanded_bytes);
}

}  // namespace

void from_session(const engine::SessionStatus& session, std::span<const std::string> tenant_names,
                  v1::SessionStatus& out) {
  out.set_session(static_cast<std::uint32_t>(session.session));
  if (session.tenant.socket < tenant_names.size()) out.set_tenant(tenant_names[session.tenant.socket]);
  out.set_uid(session.tenant.uid);
  out.set_pid(session.pid);
  out.set_label(session.label);
  out.set_tensors(session.tensors);
  out.set_tensor_bytes(session.tensor_bytes);
  out.set_leases(session.leases);
  out.set_leased_bytes(session.leased_bytes);
  out.set_step(session.step);
  if (session.plan != 0 || session.matched + session.strayed > 0) from_foresight(session, *out.mutable_foresight());
  for (const engine::SessionStatus::Member& member : session.members) {
    v1::ShareMember& one = *out.add_members();
    one.set_session(static_cast<std::uint32_t>(member.session));
    one.set_pid(member.pid);
    one.set_label(member.label);
    one.set_leases(member.leases);
    one.set_writes(member.writes);
  }
  for (const auto& place : session.places) {
    v1::SessionPlace& one = *out.add_places();
    from_place(place.place, *one.mutable_place());
    one.set_guarantee_bytes(place.guarantee_bytes);
    one.set_mapped_bytes(place.mapped_bytes);
    one.set_used_bytes(place.used_bytes);
  }
}

void from_status(const engine::Status& status, const NodeFacts& facts, v1::NodeStatus& out) {
  out.set_version(facts.version);
  out.set_draining(status.draining);
  for (const auto& tier : status.tiers) from_tier(tier, *out.add_tiers());
  for (const auto& link : status.links) from_link(link, *out.add_links());
  for (const auto& place : status.places) {
    v1::PlaceStatus& one = *out.add_places();
    from_place(place.place, *one.mutable_place());
    one.set_hits(place.hits);
    one.set_waits(place.waits);
    one.set_errors(place.errors);
    from_histogram(place.wait, *one.mutable_wait());
  }
  v1::PrefetchStatus& prefetches = *out.mutable_prefetches();
  prefetches.set_used(status.prefetches.used);
  prefetches.set_late(status.prefetches.late);
  prefetches.set_wasted(status.prefetches.wasted);
  prefetches.set_refused(status.prefetches.refused);
  out.set_steps(status.steps);
  out.set_requests_waiting(status.requests_waiting);
  for (const std::string& lack : facts.lacks) out.add_lacks(lack);
  out.set_process(::getpid());
}

void from_headroom(const engine::Status& status, v1::WatchResponse& out) {
  for (const auto& tier : status.tiers) {
    v1::Headroom& one = *out.add_headroom();
    place_of_tier(tier, *one.mutable_place());
    const std::uint64_t taken = tier.used_bytes + tier.retired_bytes;
    one.set_free_bytes(taken < tier.capacity_bytes ? tier.capacity_bytes - taken : 0);
    one.set_largest_free_bytes(tier.largest_free_bytes);
  }
}

}  // namespace terrace::front
