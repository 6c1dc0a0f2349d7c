// SPDX-License-Identifier: Apache-2.0
// A plan is carried out: what it says of early transfers is advice, and every step of it goes the way that a request's
// would.
#include "engine/admission/ahead.h"

#include <algorithm>
#include <bitset>
#include <utility>

namespace terrace::engine {
namespace {

constexpr std::int64_t kReturnAheadNs = 300'000'000;  // of copies that went against the plan
constexpr std::uint64_t kReturnRoomOneIn = 16;        // part of a tier that is left free then, for what the plan brings
constexpr std::uint64_t kAheadMax = 2;                // on a link, of what nobody waits for
constexpr std::uint32_t kPlannedFetchesMax = 4;       // begun and not there, of a session
constexpr std::uint32_t kPutOffMax = 64;  // transfers that cannot begin just now, of each kind, looked at a time

}  // namespace

void Ahead::foresee(Session& session) {
  Foreseen& foreseen = session.foreseen;
  if (!foreseen.plan && foreseen.told.empty() && session.prefetches_running == 0) return;  // nor was there one
  steps_.tell_policies(session);
  if (session.prefetches_running > 0) revoke_late(session);
  if (!foreseen.plan) return;
  const foresight::Plan& plan = *foreseen.plan;
  const auto is_due = [&](const foresight::PlannedClean& clean) {
    return clean.after <= foreseen.cursor || (clean.write < foreseen.met.size() && foreseen.met[clean.write]);
  };
  for (; foreseen.next_clean < plan.cleans.size() && foreseen.cleans.size() < kDueMax &&
         is_due(plan.cleans[foreseen.next_clean]);
       ++foreseen.next_clean) {
    const foresight::PlannedClean& clean = plan.cleans[foreseen.next_clean];
    const auto later = std::ranges::upper_bound(foreseen.cleans, clean.overdue, {}, &foresight::PlannedClean::overdue);
    foreseen.cleans.insert(later, clean);
  }
  for (; foreseen.next_fetch < plan.fetches.size() && foreseen.fetches.size() < kDueMax &&
         plan.fetches[foreseen.next_fetch].from <= foreseen.cursor;
       ++foreseen.next_fetch) {
    foresight::PlannedFetch fetch = plan.fetches[foreseen.next_fetch];
    fetch.due_ns += foreseen.base_ns;
    const auto later = std::ranges::upper_bound(foreseen.fetches, fetch.due_ns, {}, &foresight::PlannedFetch::due_ns);
    foreseen.fetches.insert(later, fetch);
  }
  if (links_.former_at_work) return;
  start_planned_cleans(session);
  start_planned_fetches(session);
}

void Ahead::start_planned_cleans(Session& session) {
  auto& cleans = session.foreseen.cleans;
  std::uint32_t put_off = 0;
  for (std::size_t at = 0; at < cleans.size() && put_off < kPutOffMax;) {
    const Planned planned = start_planned_clean(session, cleans[at]);
    if (planned == Planned::kNoRoom) return;  // nor for the others: to look for it walks the tier below
    if (planned == Planned::kDone) {
      cleans.erase(cleans.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      ++at;
      ++put_off;
    }
  }
}

Planned Ahead::start_planned_clean(Session& session, const foresight::PlannedClean& clean) {
  const auto tier = tiers_.tier_of_place(clean.place, false);
  if (!tier || index(clean.slot) >= session.tensors.size()) return Planned::kDone;
  const Level level = tiers_[*tier].level;
  const Tensor& tensor = session.at(clean.slot);
  if (level == Level::kMemory && tensor.live() && tensor.published == Level::kDevice &&
      tiers_.place_of(session, tensor, Level::kDevice).policy->expected(clean.slot).give_up)
    return Planned::kLater;                                     // it is to come from there
  if (tensor.live() && !tensor.idle()) return Planned::kLater;  // it may be published nowhere meanwhile
  if (level == tiers_.home_level || !tensor.live() || tensor.deleted || !tensor.written || tensor.lost ||
      tensor.home_bad || tensor.pinned != Level::kNone || tensor.published != level || !tiers_.at_tier(tensor, *tier) ||
      tiers_.is_gone(session, tensor))
    return Planned::kDone;
  if (clean.overdue && !session.places[*tier]->policy->expected(clean.slot).give_up) return Planned::kDone;
  if (tensor.admission != 0) return Planned::kLater;
  if (words_.droppable(session, clean.slot, level)) return Planned::kDone;
  if (session.word(clean.slot).writers != 0) return Planned::kLater;
  Level target = tiers_.home_level;
  if (level == Level::kDevice && tiers_.memory != kNoTier) target = Level::kMemory;
  if (target == Level::kBlock && (links_.outage.withholds() || !links_.write_budget.allows_early(turn_.now)))
    return Planned::kDone;  // or it never comes to be
  const mover::Link link = tiers_.link_between(tensor, level, target);
  if (links_.scheduler.queued(link) + links_.scheduler.in_flight(link) >= (clean.overdue ? 1 : kAheadMax))
    return Planned::kLater;
  if (target != tiers_.home_level && !tensor.has(target)) {
    Place& below = *session.places[tiers_.memory];
    const std::uint64_t bytes = tensor.extent_bytes();
    std::uint64_t offset = 0;
    if (below.space.largest_free_bytes() < bytes && (below.adding_bytes > 0 || budget_.grow(session, tiers_.memory)))
      return Planned::kNoRoom;
    if (!evictions_.allocate_by_dropping(session, tiers_.memory, bytes, offset)) return Planned::kNoRoom;
    copies_.add_copy(session, clean.slot, tiers_.memory, offset);
  }
  return transfers_.start_clean(session, clean.slot, level, target) ? Planned::kDone : Planned::kLater;
}

// Whoever wanted it has it by now, or asked for it; or there is no plan any more that wants it.
void Ahead::revoke_late(Session& session) {
  for (auto at = session.admissions.begin(); at != session.admissions.end();) {
    Admission& admission = *at++;
    const bool late = !session.foreseen.plan || admission.due_ns < session.foreseen.now_ns();
    if (admission.planned && late && !admission.late) revoke(session, admission);
  }
}

// Whoever waits for room goes first: what was given up for it must not take the room again, only to be given up once
// more.
void Ahead::start_planned_fetches(Session& session) {
  auto& fetches = session.foreseen.fetches;
  if (fetches.empty()) return;
  const std::bitset<kTiersMax> by_demands = session.awaited(false);
  const std::bitset<kTiersMax> by_any = session.awaited(true);
  std::uint32_t put_off = 0;
  for (std::size_t at = 0; at < fetches.size() && put_off < kPutOffMax;) {
    const auto tier = tiers_.tier_of_place(fetches[at].place, false);
    const bool waits = tier && (fetches[at].returns ? by_any : by_demands)[index(*tier)];
    if (!waits && start_planned_fetch(session, fetches[at])) {
      fetches.erase(fetches.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      ++at;
      ++put_off;
    }
  }
}

bool Ahead::start_planned_fetch(Session& session, const foresight::PlannedFetch& fetch) {
  const auto tier = tiers_.tier_of_place(fetch.place, false);
  if (!tier || index(fetch.slot) >= session.tensors.size()) return true;
  const Tensor& tensor = session.at(fetch.slot);
  if (!tensor.live() || tensor.deleted || !tensor.written || tensor.lost || tensor.torn ||
      tensor.pinned != Level::kNone || fetch.due_ns < session.foreseen.now_ns())
    return true;
  Admission admission;
  admission.kind = Admission::Kind::kPrefetch;
  admission.place = fetch.place;
  admission.tier = *tier;
  if (checks_.is_there(session, admission, tensor, shm::Mode::kRead)) return true;
  if (tensor.published != Level::kNone && tensor.published < tiers_[*tier].level) return true;  // nearer than that
  if (!tensor.idle() || tensor.admission != 0 || words_.leased(session, fetch.slot)) return false;
  if (fetch.returns) {
    const Place& place = *session.places[*tier];
    if (fetch.due_ns > session.foreseen.now_ns() + kReturnAheadNs) return false;
    if (place.space.free_bytes() < tensor.extent_bytes() + place.space.capacity_bytes() / kReturnRoomOneIn)
      return false;
  }
  const Level from = fastest_valid(tensor);
  const mover::Link link = tiers_.link_between(tensor, from, tiers_[*tier].level);
  if (from == Level::kNone || from == tiers_[*tier].level) return true;
  if (session.prefetches_running >= kPlannedFetchesMax) return false;
  if (links_.scheduler.queued(link) + links_.scheduler.in_flight(link) >= kAheadMax) return false;
  admission.tensors.push_back({fetch.slot, tensor.incarnation});
  admission.planned = true;
  admission.due_ns = fetch.due_ns;
  queues_.enlist(session, std::move(admission));
  ++session.prefetches_running;
  return true;
}

}  // namespace terrace::engine
