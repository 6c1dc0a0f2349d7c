// SPDX-License-Identifier: Apache-2.0
// Room for an admission: free extents, else one more segment, else copies that slide together, else copies given up in
// the policy's order, else a slide of whatever lies badly, else pages that are stitched together, else leases that end.
// Nothing is kept reserved between two tries.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "engine/engine_impl.h"

namespace terrace::engine {

namespace {

// What is used so soon does not go, although it would cost no transfer now.
constexpr std::int64_t kSoonNs = 10'000'000;

// All or none; the largest first, which packs best. Bytes of the first one that finds no room; 0: there is none.
std::uint64_t allocate_all(Place& place, std::uint64_t admission, const std::vector<std::uint64_t>& sizes,
                           std::vector<std::uint64_t>& offsets) {
  offsets.assign(sizes.size(), 0);
  if (sizes.size() == 1) {  // as most are
    const auto offset = place.allocate(sizes.front(), admission);
    if (offset) offsets.front() = *offset;
    return offset ? 0 : sizes.front();
  }
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return std::pair(sizes[b], a) < std::pair(sizes[a], b); });
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (const auto offset = place.allocate(sizes[order[i]], admission)) {
      offsets[order[i]] = *offset;
      continue;
    }
    for (std::size_t j = 0; j < i; ++j) place.give_back({offsets[order[j]], sizes[order[j]]});
    return sizes[order[i]];
  }
  return 0;
}

// What a copy that slides has of its new extent, beside its old one.
std::uint64_t slide_bytes(const Tensor& tensor, Level level) {
  if (tensor.sliding != level) return 0;
  const tier::Extent old = tensor.extent(level);
  const std::uint64_t to = tensor.slide().offset;
  return std::min(old.bytes, old.offset > to ? old.offset - to : old.bytes);
}

}  // namespace

Error EngineImpl::full(const Session& session, std::size_t tier, const std::string& what) const {
  const Place& place = *session.places[tier];
  return {ErrorCode::kResourceExhausted,
          fmt::format(
              "{} in '{}': the session can have {} of {} bytes there, has mapped {} and uses {}; other sessions "
              "are guaranteed {}; the largest free extent has {}{}",
              what, tiers_[tier].options.name, limit_bytes(session, tier), tiers_[tier].options.capacity_bytes,
              place.mapped_bytes(), place.used_bytes(), floors_bytes(tier, &session), place.space.largest_free_bytes(),
              place.add_failed ? fmt::format("; the system had no more memory ({})", place.add_error) : ""),
          0};
}

// What the tier must hold at once for this admission.
std::uint64_t EngineImpl::set_bytes(Session& session, const Admission& admission, std::uint64_t missing_bytes) const {
  std::uint64_t bytes = missing_bytes;
  for (const Handle& handle : admission.tensors) {
    const Tensor& tensor = session.at(handle.slot);
    if (at_tier(tensor, admission.tier)) bytes += tensor.extent_bytes();
  }
  return bytes;
}

EngineImpl::Room EngineImpl::make_room(Session& session, Admission& admission, const std::vector<std::uint64_t>& sizes,
                                       std::vector<std::uint64_t>& offsets, Error& refusal) {
  Place& place = *session.places[admission.tier];
  std::uint64_t missing = 0;
  for (const std::uint64_t size : sizes) missing += size;
  admission.missing_bytes = missing;
  const std::uint64_t bytes = set_bytes(session, admission, missing);
  const TierOptions& tier = tiers_[admission.tier].options;
  if (bytes > tier.capacity_bytes) {
    refusal = {ErrorCode::kResourceExhausted,
               fmt::format("the set has {} bytes, and '{}' {} in all: it can never be there at once; ask for fewer "
                           "tensors, or at another place",
                           bytes, tier.name, tier.capacity_bytes),
               0};
    return Room::kRefused;
  }
  if (bytes > limit_bytes(session, admission.tier)) {
    const std::string set = admission.tensors.size() == 1
                                ? fmt::format("tensor '{}'", name(session, admission.tensors.front().slot))
                                : fmt::format("a set of {} tensors", admission.tensors.size() + admission.specs.size());
    refusal = full(session, admission.tier, fmt::format("no room for {}, {} bytes", set, bytes));
    return Room::kRefused;
  }
  while (true) {
    const std::uint64_t unplaced = allocate_all(place, admission.id, sizes, offsets);
    if (unplaced == 0) return Room::kReady;
    if (place.adding_bytes > 0 || grow(session, admission.tier)) return Room::kWait;
    if (make_room_at_once(session, admission, unplaced)) continue;
    if (unstitch_unfit(session, admission, sizes)) continue;
    if (place.write_back_error && !admission.is(Admission::Kind::kPrefetch)) {
      refusal = *place.write_back_error;
      place.write_back_error.reset();
      return Room::kRefused;
    }
    const Room room = place.free_bytes(admission.id) < missing
                          ? make_room_by_bytes(session, admission, missing, refusal)
                          : make_room_by_shape(session, admission, sizes, refusal);
    if (room != Room::kReady) return room;
  }
}

// What leaves will do, and has not left yet: until then a look at the whole set, at every completion, would find
// nothing.
bool EngineImpl::room_is_coming(const Session& session, const Admission& admission) const {
  if (admission.block != Admission::Block::kSpace || admission.missing_bytes == 0) return false;
  const Place& place = *session.places[admission.tier];
  const std::uint64_t free = place.free_bytes(admission.id);
  return !place.write_back_error && free < admission.missing_bytes &&
         free + place.leaving_bytes >= admission.missing_bytes;
}

// kReady: something changed, look again.
EngineImpl::Room EngineImpl::make_room_by_bytes(Session& session, Admission& admission, std::uint64_t missing_bytes,
                                                Error& refusal) {
  const std::size_t tier = admission.tier;
  Place& place = *session.places[tier];
  const std::uint64_t free = place.free_bytes(admission.id);
  const std::uint64_t coming = free + place.leaving_bytes;
  raise_leaving(session, tier, missing_bytes - std::min(missing_bytes, free),
                {admission.write_back_class(), admission.deadline});
  if (coming >= missing_bytes) return Room::kWait;
  if (tiers_[tier].level == home_level_) {  // homes are there for good
    refusal = full(session, tier, fmt::format("no home for {} bytes", missing_bytes));
    return Room::kRefused;
  }
  const std::uint64_t needed = missing_bytes - coming;
  const Survey found = survey_for(session, admission, needed);
  if (admission.planned && found.victim_bytes < needed) return Room::kWait;
  if (found.victim_bytes < needed && found.victim_bytes + found.busy_bytes >= needed) return Room::kWait;
  if (found.victim_bytes < needed)
    return wait_for_leases(session, admission, found, needed - found.victim_bytes - found.busy_bytes, refusal);
  const EvictionReason reason =
      admission.is(Admission::Kind::kPrefetch) ? EvictionReason::kPrefetch : EvictionReason::kDemand;
  bool changed = false;
  for (const Slot victim : found.victims) {
    const Tensor& tensor = session.at(victim);
    // Giving up one victim may have touched another: its lower copy went, say.
    if (!may_move(tensor) || !at_tier(tensor, tier)) continue;
    const Eviction done =
        evict(session, victim, tiers_[tier].level, reason, {admission.write_back_class(), admission.deadline}, false);
    changed |= done == Eviction::kDropped || done == Eviction::kRefused;
  }
  return changed ? Room::kReady : Room::kWait;
}

// The bytes are there, but not side by side.
EngineImpl::Room EngineImpl::make_room_by_shape(Session& session, Admission& admission,
                                                const std::vector<std::uint64_t>& sizes, Error& refusal) {
  const std::size_t tier = admission.tier;
  const std::uint64_t missing_bytes = admission.missing_bytes;
  const Place& place = *session.places[tier];
  // What no going of others would bring side by side is stitched before they go in vain.
  if (can_stitch(tier) && runs_at_best(session, tier).front() < *std::ranges::max_element(sizes))
    if (const auto room = stitch(session, admission, sizes, refusal)) return *room;
  if (join_free(session, tier, missing_bytes)) return Room::kWait;
  if (place.leaving_bytes > 0) {
    raise_leaving(session, tier, place.leaving_bytes, {admission.write_back_class(), admission.deadline});
    return Room::kWait;
  }
  const bool prefetch = admission.is(Admission::Kind::kPrefetch);
  Survey found = survey_for(session, admission, 1);
  if (admission.planned && found.victims.empty()) return Room::kWait;
  if (!found.victims.empty() && takes_drives(session, tier, found.victims.front()) && join_parts(session, tier, sizes))
    return Room::kWait;
  if (!found.victims.empty()) {
    const Eviction done = evict(session, found.victims.front(), tiers_[tier].level,
                                prefetch ? EvictionReason::kPrefetch : EvictionReason::kDemand,
                                {mover::Class::kAwaitedWriteBack, admission.deadline}, false);
    return done == Eviction::kDropped || done == Eviction::kRefused ? Room::kReady : Room::kWait;
  }
  if (slide_one(session, tier) || found.busy_bytes > 0) return Room::kWait;
  if (const auto room = stitch(session, admission, sizes, refusal)) return *room;
  return wait_for_leases(session, admission, found, std::min(missing_bytes, found.leased_bytes), refusal);
}

// What leaves may have been begun for somebody less urgent. So many bytes of it, in the policy's order.
void EngineImpl::raise_leaving(Session& session, std::size_t tier, std::uint64_t enough_bytes, Urgency urgency) {
  const Place& place = *session.places[tier];
  const std::uint64_t enough = std::min(enough_bytes, place.leaving_bytes);
  std::uint64_t leaving = 0;
  if (enough == 0) return;
  place.policy->offer_victims([&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    if (tensor.leaving != tiers_[tier].level || !at_tier(tensor, tier)) return true;
    scheduler_.raise(TransferId{tensor.transfer}, urgency.urgency, urgency.deadline);
    leaving += tensor.extent_bytes();
    return leaving < enough;
  });
}

Choice EngineImpl::choice_for(const Session& session, const Admission& admission, std::uint64_t enough_bytes) const {
  Choice choice{.enough_bytes = enough_bytes, .spare_hinted = admission.is(Admission::Kind::kPrefetch)};
  if (!session.foreseen.plan) return choice;
  if (admission.planned) {  // nothing that is needed sooner goes for a guess
    choice.at_once = true;
    choice.used_after_ns = admission.due_ns + 1;
  }
  return choice;
}

// Under a plan a demand takes what costs no transfer before it waits for one: write-backs were begun early.
Survey EngineImpl::survey_for(Session& session, const Admission& admission, std::uint64_t enough_bytes) {
  Choice choice = choice_for(session, admission, enough_bytes);
  if (session.foreseen.plan && !admission.is(Admission::Kind::kPrefetch)) {
    choice.at_once = true;
    choice.used_after_ns = session.foreseen.now_ns() + kSoonNs;
    const Survey found = survey(session, admission.tier, choice);
    if (found.victim_bytes >= enough_bytes) return found;
    choice = choice_for(session, admission, enough_bytes);
  }
  return survey(session, admission.tier, choice);
}

// Walks the copies in the tier from the first to give up, until enough of them could be.
Survey EngineImpl::survey(Session& session, std::size_t tier, const Choice& choice) {
  Survey found;
  const Level level = tiers_[tier].level;
  const Policy& policy = *session.places[tier]->policy;
  constexpr std::uint32_t kLooksMax = 1024;  // where many copies would cost a transfer
  std::uint32_t looks = 0;
  const auto look = [&](Slot slot) {
    if (choice.at_once && ++looks > kLooksMax) return false;
    const Tensor& tensor = session.at(slot);
    const std::uint64_t bytes = tensor.extent_bytes() + slide_bytes(tensor, level);
    const bool here = tensor.published == level;
    if (tensor.pinned == level) {
      found.pinned_bytes += bytes;
    } else if (here && leased(session, slot)) {
      if (tensor.mark == set_mark_ && level != home_level_) return true;
      found.leased.push_back(slot);
      found.leased_bytes += bytes;
    } else if (tensor.mark == set_mark_) {
      if (!may_move(tensor)) found.busy_bytes += bytes;  // once it is clean it can be moved
      return true;
    } else if (tensor.activity == Activity::kEvicting && tensor.leaving == level) {
      return true;  // counted as leaving
    } else if (!may_move(tensor)) {
      found.busy_bytes += bytes;
    } else if (former_at_work_ && level == Level::kMemory && !droppable(session, slot, level)) {
      found.busy_bytes += bytes;  // it cannot be written down yet
    } else if (level != home_level_ && !(choice.spare_hinted && here && tensor.hinted)) {
      if (choice.at_once && !droppable(session, slot, level)) return true;
      if (policy.expected(slot).next_ns < choice.used_after_ns) return true;
      found.victims.push_back(slot);
      found.victim_bytes += bytes;
    }
    return found.victim_bytes < choice.enough_bytes;
  };
  policy.offer_victims(std::ref(look));
  return found;
}

// The chosen leases refuse the fast path until the admission ends, and ring when they end.
EngineImpl::Room EngineImpl::wait_for_leases(Session& session, Admission& admission, const Survey& found,
                                             std::uint64_t bytes, Error& refusal) {
  const std::size_t tier = admission.tier;
  const Place& place = *session.places[tier];
  if (!place.seams.empty()) unstitch_unfit(session, admission, {});  // nothing is kept reserved while it waits
  if (admission.is(Admission::Kind::kPrefetch) || found.leased.empty() || found.leased_bytes < bytes) {
    refusal = full(session, tier,
                   fmt::format("no room for {} bytes more ({} bytes are leased, {} pinned)", bytes, found.leased_bytes,
                               found.pinned_bytes));
    return Room::kRefused;
  }
  if (others_hold(session, admission, found.leased) && must_not_wait(session, admission)) {
    refusal = full(session, tier,
                   fmt::format("{} bytes are leased there, by other sessions of share '{}' too, and this one holds "
                               "leases in it: release them before waiting, or take what is used together in one set",
                               found.leased_bytes, session.share));
    return Room::kRefused;
  }
  if (place.fence != kNoFence && found.leased_bytes > place.floor_bytes) {
    refusal = full(session, tier,
                   fmt::format("the session holds {} bytes leased, beyond its guarantee of {}", found.leased_bytes,
                               place.floor_bytes));
    return Room::kRefused;
  }
  std::uint64_t awaited = 0;
  bool ended = false;
  for (const Handle& handle : admission.wanted) {
    const Tensor& tensor = session.at(handle.slot);
    if (tensor.incarnation == handle.incarnation && at_tier(tensor, tier) && leased(session, handle.slot))
      awaited += tensor.extent_bytes();
  }
  for (const Slot slot : found.leased) {
    if (awaited >= bytes) break;
    const Handle handle{slot, session.at(slot).incarnation};
    if (std::find(admission.wanted.begin(), admission.wanted.end(), handle) != admission.wanted.end()) continue;
    want(session, slot);
    admission.wanted.push_back(handle);
    awaited += session.at(slot).extent_bytes();
    ended |= !leased(session, slot);
  }
  return ended ? Room::kReady : Room::kLeases;
}

// Who waits for another session's leases keeps nobody from a tensor for the sake of room meanwhile: that session may be
// waiting for this very tensor.
void EngineImpl::drop_wants(Session& session, Admission& admission) {
  if (admission.wanted.empty()) return;
  for (const Handle& handle : admission.wanted) unwant(session, handle);
  admission.wanted.clear();
  ++session.events;
}

void EngineImpl::clear_wants(Session& session, Admission& admission) {
  for (const Handle& handle : admission.wanted) unwant(session, handle);
  admission.wanted.clear();
  for (const Handle& handle : admission.awaited) {
    Tensor& tensor = session.at(handle.slot);
    if (tensor.incarnation != handle.incarnation || tensor.awaited_by != admission.id) continue;
    tensor.awaited_by = 0;
    show_wanted(session, handle.slot);
    ++session.events;  // whoever came later may have it now
    stir(session);
  }
  admission.awaited.clear();
}

// Moves one copy down to the start of the free run before it, so that free runs join. True if one is on its way.
bool EngineImpl::slide_one(Session& session, std::size_t tier) {
  const Level level = tiers_[tier].level;
  std::vector<std::pair<std::uint64_t, Slot>> copies;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !at_tier(tensor, tier)) continue;
    if (tensor.activity == Activity::kSliding) return true;
    copies.emplace_back(tensor.offset[index(level)], Slot{at});
  }
  std::sort(copies.begin(), copies.end());
  std::uint64_t end = 0;
  for (const auto& [offset, slot] : copies) {
    const Tensor& tensor = session.at(slot);
    if (offset >= tier::kSeamsBegin) {  // where it lies side by side again, its pages are free to join others
      Place& place = *session.places[tier];
      const auto room = place.space.allocate(tensor.extent_bytes());
      if (!room) continue;
      place.space.free(*room);
      const bool movable = may_move(tensor) && tensor.pinned != level && !tensor.deleted;
      if (!movable || (tensor.published == level && !claim(session, slot))) continue;
      start_slide(session, slot, level, room->offset);
      return true;
    }
    const auto gaps = session.places[tier]->space.free_within({end, offset - end});
    end = tensor.extent(level).end();
    const bool movable = may_move(tensor) && tensor.pinned != level && !tensor.deleted;
    if (gaps.empty() || gaps.back().end() != offset || !movable) continue;
    if (tensor.published == level && !claim(session, slot)) continue;
    start_slide(session, slot, level, gaps.back().offset);
    return true;
  }
  return false;
}

// The new extent may overlap the old one; what of it does not is free.
void EngineImpl::start_slide(Session& session, Slot slot, Level level, std::uint64_t new_offset) {
  withdraw_clean(session, slot);
  Tensor& tensor = session.at(slot);
  Place& place = place_of(session, tensor, level);
  tensor.begin_slide(level, {new_offset, 0});
  place.space.take({new_offset, slide_bytes(tensor, level)});
  if (tensor.is_valid(level)) return slide_on(session, slot);
  slid(session, slot, {});  // nothing is written there: only the books change
}

// One step: as much as does not overlap what it is read from, so that bytes are whole in one of the two places at any
// moment, and a successor can go on from there.
void EngineImpl::slide_on(Session& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  const std::uint64_t old = tensor.offset[index(tensor.sliding)];
  const std::uint64_t left = tensor.extent_bytes() - tensor.slide().bytes;
  const std::uint64_t apart = old > tensor.slide().offset ? old - tensor.slide().offset : left;
  start(session, slot,
        {.session = session.id,
         .slot = slot,
         .activity = Activity::kSliding,
         .from = tensor.sliding,
         .to = tensor.sliding,
         .step_bytes = std::min(left, apart)},
        {mover::Class::kAwaitedWriteBack, kNever});
}

}  // namespace terrace::engine
