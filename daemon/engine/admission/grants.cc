// SPDX-License-Identifier: Apache-2.0
// An admission is granted with all leases in one go.
#include "engine/admission/grants.h"

#include <fmt/format.h>

namespace terrace::engine {

// Leases on those that were published there before. These alone can fail; what was taken is given back then.
Result<void> Grants::lease_resident(Session& session, const Admission& admission, const std::vector<Slot>& slots) {
  LeaseTable& table = session.find_member(admission.member)->table;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& tensor = session.at(slots[i]);
    if (tensor.published == Level::kNone) continue;
    const shm::Mode mode = admission.modes[i];
    const auto step = shm::grant(table.word(slots[i]), tensor.incarnation, mode, !table.load(slots[i]).turn);
    if (step.outcome == shm::Outcome::kDone) continue;
    for (std::size_t j = 0; j < i; ++j) {
      const Tensor& taken = session.at(slots[j]);
      if (taken.published == Level::kNone) continue;
      shm::ungrant(table.word(slots[j]), admission.modes[j], table.load(slots[j]).turn);
      if (taken.torn) shm::tear(table.word(slots[j]), taken.incarnation);
    }
    words_.note_torn(session, slots[i]);
    if (const auto good = checks_.check_content(session, admission, slots[i], mode); !good) return good;
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("tensor '{}' has {} readers and {} writers: no more leases fit",
                            records_.name(session, slots[i]), step.word.readers, step.word.writers));
  }
  return {};
}

// Each word's turn is the other one after the grant.
void Grants::note_leases(Session& session, const Admission& admission, const std::vector<Slot>& slots) {
  const Member& member = *session.find_member(admission.member);
  if (!member.maps_segments) return;
  // Of which an overwrite gives the content up, or finds none.
  const auto fresh = [](const Tensor& tensor) { return tensor.published == Level::kNone || tensor.torn; };
  std::vector<GrantedSlot> granted;
  granted.reserve(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i)
    granted.push_back({static_cast<std::uint32_t>(slots[i]), GrantedLease{.mode = admission.modes[i],
                                                                          .turn = !member.table.load(slots[i]).turn,
                                                                          .fresh = fresh(session.at(slots[i]))}
                                                                 .packed()});
  records_.note(session,
                {.request = static_cast<std::uint64_t>(admission.request),
                 .session = static_cast<std::uint32_t>(member.id),
                 .kind = GrantRecord::Kind::kLeases,
                 .value = static_cast<std::uint32_t>(tiers_[admission.tier].level),
                 .count = static_cast<std::uint32_t>(granted.size())},
                granted);
}

void Grants::grant(Session& session, Admission& admission) {
  const std::vector<Slot>& slots = admission.slots;
  if (const auto found = checks_.find_set(session, admission); !found)
    return fail_admission(session, admission, found.error());
  if (admission.is(Admission::Kind::kAcquire)) {
    if (const auto room = records_.check_note(session, admission.member, slots.size()); !room)
      return fail_admission(session, admission, room.error());
    note_leases(session, admission, slots);
  }
  if (admission.is(Admission::Kind::kAcquire))
    if (const auto leased = lease_resident(session, admission, slots); !leased)
      return fail_admission(session, admission, leased.error());
  const Level level = tiers_[admission.tier].level;
  Located located;
  located.tensors.reserve(slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = slots[i];
    settle_granted(session, admission, slot, admission.modes[i]);
    const Tensor& tensor = session.at(slot);
    located.tensors.push_back(tiers_.placement(tensor, level));
    if (admission.passing) continue;
    if (tiers_[admission.tier].mapped() && !admission.is(Admission::Kind::kPrefetch))
      session.places[admission.tier]->policy->used(slot, turn_.now);
    if (!admission.is(Admission::Kind::kAcquire)) continue;
    steps_.observe(session, slot, admission.modes[i], turn_.now,
                   admission.waited || admission.fetched > 0 ? turn_.now - admission.started : Duration::zero());
    steps_.follow(session, slot);
  }
  count_waited(admission, true);
  const bool silent = admission.is(Admission::Kind::kPrefetch);
  const RequestId request = admission.request;
  const bool unwanted = admission.revoked && !admission.late;
  const std::vector<Slot> brought = unwanted ? slots : std::vector<Slot>{};
  end_admission(session, admission);
  for (const Slot slot : brought) departures_.evict_for_hint(session, slot);
  if (!silent) requests_.answer(request, ReplyBody{std::move(located)});
}

void Grants::settle_granted(Session& session, const Admission& admission, Slot slot, shm::Mode mode) {
  Tensor& tensor = session.at(slot);
  const Level level = tiers_[admission.tier].level;
  const bool fresh = tensor.published == Level::kNone;
  if (admission.is(Admission::Kind::kAcquire)) {
    const bool writes = mode != shm::Mode::kRead;
    if (!admission.passing) steps_.note_lease(session, slot);
    if (fresh && mode == shm::Mode::kOverwrite) lives_.overwritten_at(session, slot, level);
    if (writes) lives_.written(session, slot);
    if (fresh) words_.publish(session, slot, level, admission.member, mode);
    if (writes) transfers_.give_up_clean(session, slot);  // it would not count
    return;
  }
  if (admission.is(Admission::Kind::kPin)) lives_.pin(session, slot, level, admission.member);
  if (admission.is(Admission::Kind::kPrefetch) && admission.fetched > 0) tensor.prefetched = true;
  if (admission.is(Admission::Kind::kPrefetch) && !admission.planned && !admission.revoked)
    steps_.note_hint(session, slot, admission.tier);
  if (fresh && level != Level::kBlock && tensor.written && tensor.is_valid(level) && !tensor.forget)
    words_.publish(session, slot, level);
  if (!admission.is(Admission::Kind::kMove)) return;
  for (const Level above : {Level::kDevice, Level::kMemory}) {
    if (above >= level || !tensor.has(above) || tensor.published == above || !tensor.idle()) continue;
    if (tensor.pinned == above) continue;  // its bytes are gone there, and its place is kept
    copies_.count_eviction(tensor, above, EvictionReason::kMove);
    copies_.drop_copy(session, slot, above);
  }
}

}  // namespace terrace::engine
