// SPDX-License-Identifier: Apache-2.0
// Room for a demand: free extents, else one more segment, else copies that slide together, else copies given up in
// the policy's order, else a slide of whatever lies badly, else pages that are stitched together, else leases that end.
// Nothing is kept reserved between two tries.
#include "engine/space/rooms.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace terrace::engine {
namespace {

// What is used so soon does not go, although it would cost no transfer now.
constexpr std::int64_t kSoonNs = 10'000'000;

// All or none; the largest first, which packs best. Bytes of the first one that finds no room; 0: there is none.
std::uint64_t allocate_all(Place& place, std::uint64_t demand, const std::vector<std::uint64_t>& sizes,
                           std::vector<std::uint64_t>& offsets) {
  offsets.assign(sizes.size(), 0);
  if (sizes.size() == 1) {  // as most are
    const auto offset = place.allocate(sizes.front(), demand);
    if (offset) offsets.front() = *offset;
    return offset ? 0 : sizes.front();
  }
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return std::pair(sizes[b], a) < std::pair(sizes[a], b); });
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (const auto offset = place.allocate(sizes[order[i]], demand)) {
      offsets[order[i]] = *offset;
      continue;
    }
    for (std::size_t j = 0; j < i; ++j) place.give_back({offsets[order[j]], sizes[order[j]]});
    return sizes[order[i]];
  }
  return 0;
}

constexpr std::int64_t kInUseNs = 100'000'000;  // what is used so soon does not go for what lies around it

}  // namespace

// What the tier must hold at once for this demand.
std::uint64_t Rooms::set_bytes(Course& session, const Demand& demand, std::uint64_t missing_bytes) const {
  std::uint64_t bytes = missing_bytes;
  for (const Handle& handle : demand.tensors) {
    const Tensor& tensor = session.at(handle.slot);
    if (tiers_.at_tier(tensor, demand.tier)) bytes += tensor.extent_bytes();
  }
  return bytes;
}

Room Rooms::make_room(Course& session, Demand& demand, const std::vector<std::uint64_t>& sizes,
                      std::vector<std::uint64_t>& offsets, Error& refusal) {
  Place& place = *session.places[demand.tier];
  std::uint64_t missing = 0;
  for (const std::uint64_t size : sizes) missing += size;
  demand.missing_bytes = missing;
  const std::uint64_t bytes = set_bytes(session, demand, missing);
  const TierOptions& tier = tiers_[demand.tier].options;
  if (bytes > tier.capacity_bytes) {
    refusal = {ErrorCode::kResourceExhausted,
               fmt::format("the set has {} bytes, and '{}' {} in all: it can never be there at once; ask for fewer "
                           "tensors, or at another place",
                           bytes, tier.name, tier.capacity_bytes),
               0};
    return Room::kRefused;
  }
  if (bytes > budget_.limit_bytes(session, demand.tier)) {
    const std::string set = demand.tensors.size() == 1
                                ? fmt::format("tensor '{}'", records_.name(session, demand.tensors.front().slot))
                                : fmt::format("a set of {} tensors", demand.tensors.size() + demand.fresh);
    refusal = budget_.full(session, demand.tier, fmt::format("no room for {}, {} bytes", set, bytes));
    return Room::kRefused;
  }
  while (true) {
    const std::uint64_t unplaced = allocate_all(place, demand.id, sizes, offsets);
    if (unplaced == 0) return Room::kReady;
    if (place.adding_bytes > 0 || budget_.grow(session, demand.tier)) return Room::kWait;
    if (make_room_at_once(session, demand, unplaced)) continue;
    if (unstitch_unfit(session, demand, sizes)) continue;
    if (place.write_back_error && !demand.is(Demand::Kind::kPrefetch)) {
      refusal = *place.write_back_error;
      place.write_back_error.reset();
      return Room::kRefused;
    }
    const Room room = place.free_bytes(demand.id) < missing ? make_room_by_bytes(session, demand, missing, refusal)
                                                            : make_room_by_shape(session, demand, sizes, refusal);
    if (room != Room::kReady) return room;
  }
}

// What leaves will do, and has not left yet: until then a look at the whole set, at every completion, would find
// nothing.
bool Rooms::room_is_coming(const Course& session, const Demand& demand) const {
  if (demand.missing_bytes == 0) return false;
  const Place& place = *session.places[demand.tier];
  const std::uint64_t free = place.free_bytes(demand.id);
  return !place.write_back_error && free < demand.missing_bytes && free + place.leaving_bytes >= demand.missing_bytes;
}

// kReady: something changed, look again.
Room Rooms::make_room_by_bytes(Course& session, Demand& demand, std::uint64_t missing_bytes, Error& refusal) {
  const TierId tier = demand.tier;
  Place& place = *session.places[tier];
  const std::uint64_t free = place.free_bytes(demand.id);
  const std::uint64_t coming = free + place.leaving_bytes;
  windows_.raise_leaving(session, tier, missing_bytes - std::min(missing_bytes, free),
                         {demand.write_back_class(), demand.deadline});
  if (coming >= missing_bytes) return Room::kWait;
  if (tiers_[tier].level == tiers_.home_level) {  // homes are there for good
    const TierOptions& home = tiers_[tier].options;
    const std::uint64_t enough = home.capacity_bytes + align_up(missing_bytes - coming, home.segment_bytes);
    refusal = budget_.full(session, tier, fmt::format("no home for {} bytes", missing_bytes));
    refusal.message += fmt::format(": give it at least {} MiB", align_up(enough, kMiB) / kMiB);
    return Room::kRefused;
  }
  const std::uint64_t needed = missing_bytes - coming;
  const Survey found = survey_for(session, demand, needed);
  if (demand.planned && found.victim_bytes < needed) return Room::kWait;
  if (found.victim_bytes < needed && found.victim_bytes + found.busy_bytes >= needed) return Room::kWait;
  if (found.victim_bytes < needed)
    return wait_for_leases(session, demand, found, needed - found.victim_bytes - found.busy_bytes, refusal);
  const EvictionReason reason =
      demand.is(Demand::Kind::kPrefetch) ? EvictionReason::kPrefetch : EvictionReason::kDemand;
  bool changed = false;
  for (const Slot victim : found.victims) {
    const Tensor& tensor = session.at(victim);
    // Giving up one victim may have touched another: its lower copy went, say.
    if (!transfers_.may_move(tensor) || !tiers_.at_tier(tensor, tier)) continue;
    const Eviction done =
        evictions_.evict(session, victim, tiers_[tier].level, reason, {demand.write_back_class(), demand.deadline});
    changed |= done == Eviction::kDropped || done == Eviction::kRefused;
  }
  if (!changed) return Room::kWait;
  // Room below, for one of the victims, may come by a slide of what the set is fetched from.
  const bool slides = std::ranges::any_of(
      demand.tensors, [&](const Handle& handle) { return session.at(handle.slot).activity == Activity::kSliding; });
  return slides ? Room::kWait : Room::kReady;
}

// The bytes are there, but not side by side.
Room Rooms::make_room_by_shape(Course& session, Demand& demand, const std::vector<std::uint64_t>& sizes,
                               Error& refusal) {
  const TierId tier = demand.tier;
  const std::uint64_t missing_bytes = demand.missing_bytes;
  const Place& place = *session.places[tier];
  // What no going of others would bring side by side is stitched before they go in vain.
  if (can_stitch(tier) && windows_.runs_at_best(session, tier).front() < *std::ranges::max_element(sizes))
    if (const auto room = stitch(session, demand, sizes, refusal)) return *room;
  if (windows_.join_free(session, tier, missing_bytes)) return Room::kWait;
  if (place.leaving_bytes > 0) {
    windows_.raise_leaving(session, tier, place.leaving_bytes, {demand.write_back_class(), demand.deadline});
    return Room::kWait;
  }
  const bool prefetch = demand.is(Demand::Kind::kPrefetch);
  Survey found = survey_for(session, demand, 1);
  if (demand.planned && found.victims.empty()) return Room::kWait;
  if (!found.victims.empty() && windows_.takes_drives(session, tier, found.victims.front()) &&
      windows_.join_parts(session, tier, sizes))
    return Room::kWait;
  if (!found.victims.empty()) {
    const Eviction done = evictions_.evict(session, found.victims.front(), tiers_[tier].level,
                                           prefetch ? EvictionReason::kPrefetch : EvictionReason::kDemand,
                                           {mover::Class::kAwaitedWriteBack, demand.deadline});
    return done == Eviction::kDropped || done == Eviction::kRefused ? Room::kReady : Room::kWait;
  }
  if (windows_.slide_one(session, tier) || found.busy_bytes > 0) return Room::kWait;
  if (const auto room = stitch(session, demand, sizes, refusal)) return *room;
  return wait_for_leases(session, demand, found, std::min(missing_bytes, found.leased_bytes), refusal);
}

Choice Rooms::choice_for(const Course& session, const Demand& demand, std::uint64_t enough_bytes) const {
  Choice choice{.enough_bytes = enough_bytes, .spare_hinted = demand.is(Demand::Kind::kPrefetch)};
  if (!session.foreseen.plan) return choice;
  if (demand.planned) {  // nothing that is needed sooner goes for a guess
    choice.at_once = true;
    choice.used_after_ns = demand.due_ns + 1;
  }
  return choice;
}

// Under a plan a demand takes what costs no transfer before it waits for one: write-backs were begun early.
Survey Rooms::survey_for(Course& session, const Demand& demand, std::uint64_t enough_bytes) {
  Choice choice = choice_for(session, demand, enough_bytes);
  if (session.foreseen.plan && !demand.is(Demand::Kind::kPrefetch)) {
    choice.at_once = true;
    choice.used_after_ns = session.foreseen.now_ns() + kSoonNs;
    const Survey found = windows_.survey(session, demand.tier, choice);
    if (found.victim_bytes >= enough_bytes) return found;
    choice = choice_for(session, demand, enough_bytes);
  }
  return windows_.survey(session, demand.tier, choice);
}

// There is more room side by side than before, for a tensor of so many bytes.
bool Rooms::make_room_at_once(Course& session, const Demand& demand, std::uint64_t bytes) {
  if (!session.foreseen.plan) return false;
  Choice choice = choice_for(session, demand, 0);
  choice.at_once = true;
  if (!demand.is(Demand::Kind::kPrefetch)) choice.used_after_ns = session.foreseen.now_ns() + kInUseNs;
  return windows_.clear_window(session, demand.tier, bytes, choice);
}

// The chosen leases refuse the fast path until the demand ends, and ring when they end.
Room Rooms::wait_for_leases(Course& session, Demand& demand, const Survey& found, std::uint64_t bytes, Error& refusal) {
  const TierId tier = demand.tier;
  const Place& place = *session.places[tier];
  if (!place.seams.empty()) unstitch_unfit(session, demand, {});  // nothing is kept reserved while it waits
  if (demand.is(Demand::Kind::kPrefetch) || found.leased.empty() || found.leased_bytes < bytes) {
    refusal = budget_.full(session, tier,
                           fmt::format("no room for {} bytes more ({} bytes are leased, {} pinned)", bytes,
                                       found.leased_bytes, found.pinned_bytes));
    return Room::kRefused;
  }
  if (holders_.others_hold(session, demand.member, found.leased) && holders_.must_not_wait(session, demand.member)) {
    refusal =
        budget_.full(session, tier,
                     fmt::format("{} bytes are leased there, by other sessions of share '{}' too, and this one holds "
                                 "leases in it: release them before waiting, or take what is used together in one set",
                                 found.leased_bytes, session.share));
    return Room::kRefused;
  }
  if (place.fence != kNoFence && found.leased_bytes > place.floor_bytes) {
    refusal = budget_.full(session, tier,
                           fmt::format("the session holds {} bytes leased, beyond its guarantee of {}",
                                       found.leased_bytes, place.floor_bytes));
    return Room::kRefused;
  }
  std::uint64_t awaited = 0;
  bool ended = false;
  for (const Handle& handle : demand.wanted) {
    const Tensor& tensor = session.at(handle.slot);
    if (tensor.incarnation == handle.incarnation && tiers_.at_tier(tensor, tier) && words_.leased(session, handle.slot))
      awaited += tensor.extent_bytes();
  }
  for (const Slot slot : found.leased) {
    if (awaited >= bytes) break;
    const Handle handle{slot, session.at(slot).incarnation};
    if (std::find(demand.wanted.begin(), demand.wanted.end(), handle) != demand.wanted.end()) continue;
    words_.want(session, slot);
    demand.wanted.push_back(handle);
    awaited += session.at(slot).extent_bytes();
    ended |= !words_.leased(session, slot);
  }
  return ended ? Room::kReady : Room::kLeases;
}

// Who waits for another session's leases keeps nobody from a tensor for the sake of room meanwhile: that session may be
// waiting for this very tensor.
void Rooms::drop_wants(Course& session, Demand& demand) {
  if (demand.wanted.empty()) return;
  for (const Handle& handle : demand.wanted) words_.unwant(session, handle);
  demand.wanted.clear();
  ++session.events;
}

}  // namespace terrace::engine
