// SPDX-License-Identifier: Apache-2.0
// Admissions: how they end. Granted with all leases in one go, or refused with nothing taken.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine_impl.h"

namespace terrace::engine {

// Leases on those that were published there before. These alone can fail; what was taken is given back then.
Result<void> EngineImpl::lease_resident(Session& session, const Admission& admission, const std::vector<Slot>& slots) {
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
    note_torn(session, slots[i]);
    if (const auto good = check_content(session, admission, slots[i], mode); !good) return good;
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("tensor '{}' has {} readers and {} writers: no more leases fit", name(session, slots[i]),
                            step.word.readers, step.word.writers));
  }
  return {};
}

// Each word's turn is the other one after the grant.
void EngineImpl::note_leases(Session& session, const Admission& admission, const std::vector<Slot>& slots) {
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
  note(session,
       {.request = static_cast<std::uint64_t>(admission.request),
        .session = static_cast<std::uint32_t>(member.id),
        .kind = GrantRecord::Kind::kLeases,
        .value = static_cast<std::uint32_t>(tiers_[admission.tier].level),
        .count = static_cast<std::uint32_t>(granted.size())},
       granted);
}

void EngineImpl::grant(Session& session, Admission& admission) {
  const std::vector<Slot>& slots = admission.slots;
  if (const auto found = find_set(session, admission); !found) return fail_admission(session, admission, found.error());
  if (admission.is(Admission::Kind::kAcquire)) {
    if (const auto room = check_note(session, admission.member, slots.size()); !room)
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
    located.tensors.push_back(placement(tensor, level));
    if (admission.passing) continue;
    if (tiers_[admission.tier].mapped() && !admission.is(Admission::Kind::kPrefetch))
      session.places[admission.tier]->policy->used(slot, now_);
    if (!admission.is(Admission::Kind::kAcquire)) continue;
    observe(session, slot, admission.modes[i], now_,
            admission.waited || admission.fetched > 0 ? now_ - admission.started : Duration::zero());
    follow(session, slot);
  }
  count_waited(admission, true);
  const bool silent = admission.is(Admission::Kind::kPrefetch);
  const RequestId request = admission.request;
  const bool unwanted = admission.revoked && !admission.late;
  const std::vector<Slot> brought = unwanted ? slots : std::vector<Slot>{};
  end_admission(session, admission);
  for (const Slot slot : brought) evict_for_hint(session, slot);
  if (!silent) answer(request, ReplyBody{std::move(located)});
}

void EngineImpl::settle_granted(Session& session, const Admission& admission, Slot slot, shm::Mode mode) {
  Tensor& tensor = session.at(slot);
  const Level level = tiers_[admission.tier].level;
  const bool fresh = tensor.published == Level::kNone;
  if (admission.is(Admission::Kind::kAcquire)) {
    const bool writes = mode != shm::Mode::kRead;
    if (!admission.passing) note_lease(session, slot);
    if (fresh && mode == shm::Mode::kOverwrite) tensor.valid = bit(level);
    if (writes) tensor.written = true;
    if (writes) tensor.lost = tensor.torn = tensor.forget = false;
    touch(session, slot);
    if (fresh) publish(session, slot, level, admission.member, mode);
    if (writes) give_up_clean(session, slot);  // it would not count
    return;
  }
  touch(session, slot);
  if (admission.is(Admission::Kind::kPin)) {
    tensor.pinned = level;
    if (session.is_share()) tensor.pinner = admission.member;
  }
  if (admission.is(Admission::Kind::kPrefetch) && admission.fetched > 0) tensor.prefetched = true;
  if (admission.is(Admission::Kind::kPrefetch) && !admission.planned && !admission.revoked)
    note_hint(session, slot, admission.tier);
  if (fresh && level != Level::kBlock && tensor.written && tensor.is_valid(level) && !tensor.forget)
    publish(session, slot, level);
  if (!admission.is(Admission::Kind::kMove)) return;
  for (const Level above : {Level::kDevice, Level::kMemory}) {
    if (above >= level || !tensor.has(above) || tensor.published == above || !tensor.idle()) continue;
    if (tensor.pinned == above) continue;  // its bytes are gone there, and its place is kept
    count_eviction(tensor, above, EvictionReason::kMove);
    drop_copy(session, slot, above);
  }
}

void EngineImpl::fail_admission(Session& session, Admission& admission, Error error) {
  count_waited(admission, false);
  const bool silent = admission.is(Admission::Kind::kPrefetch);
  if (silent) ++prefetches_.refused;
  const RequestId request = admission.request;
  end_admission(session, admission);
  if (!silent) answer(request, std::unexpected(std::move(error)));
}

void EngineImpl::end_admission(Session& session, Admission& admission) {
  clear_wants(session, admission);
  // The next one may ask the system for a segment again, also in a tier that this one only passed through.
  for (const auto& place : session.places)
    if (place != nullptr) place->add_failed = false;
  const std::uint64_t id = admission.id;
  if (tiers_[admission.tier].mapped() && !session.places[admission.tier]->seams.empty())
    unstitch_unfit(session, admission, {});
  if (admission.phase == Admission::Phase::kAssembling) {
    for (const Handle& handle : admission.tensors) {
      Tensor& tensor = session.at(handle.slot);
      TERRACE_CHECK(tensor.admission == id);
      tensor.admission = 0;
      if (tensor.idle()) rest(session, handle.slot);
    }
  }
  if (admission.is(Admission::Kind::kPrefetch)) --session.prefetches_running;
  admission.slots.swap(spare_slots_);
  session.admissions.erase(std::ranges::find(session.admissions, id, &Admission::id));
  ++session.events;
  stir(session);
}

Error EngineImpl::expired(Session& session, const Admission& admission) const {
  const char* former = former_at_work_ ? "; the block tier is not served before the last read and write of a former "
                                         "daemon have ended"
                                       : "";
  if (admission.phase == Admission::Phase::kAssembling)
    return {ErrorCode::kDeadlineExceeded,
            fmt::format("{} of {} tensors were still on their way", admission.pending, admission.tensors.size()), 0};
  if (admission.block == Admission::Block::kLeases)
    return {ErrorCode::kResourceExhausted,
            fmt::format("no room in '{}' until leases end: {}", tiers_[admission.tier].options.name,
                        holders(session, admission.wanted)),
            0};
  if (admission.block == Admission::Block::kOthers)
    return {ErrorCode::kDeadlineExceeded,
            fmt::format("other sessions of share '{}' still held leases: {}", session.share,
                        holders(session, admission.awaited)),
            0};
  if (admission.block == Admission::Block::kSpace)
    return {ErrorCode::kDeadlineExceeded,
            fmt::format("room in '{}' was still being made{}", tiers_[admission.tier].options.name, former), 0};
  if (admission.behind)
    return {
        ErrorCode::kDeadlineExceeded,
        fmt::format("an earlier request still waited for room in '{}'{}", tiers_[admission.tier].options.name, former),
        0};
  return {ErrorCode::kDeadlineExceeded,
          fmt::format("a tensor of the set was still in use by another request{}", former), 0};
}

// Of an acquire: where the leases went, and how long they took.
void EngineImpl::count_waited(const Admission& admission, bool granted) {
  if (!admission.is(Admission::Kind::kAcquire)) return;
  PlaceStatus& leases = tiers_[admission.tier].leases;
  const std::uint64_t count = admission.tensors.size();
  if (!granted) {
    ++leases.errors;
    return;
  }
  const std::uint64_t missed = admission.fetched > 0 ? admission.fetched : (admission.waited ? count : 0);
  leases.waits += missed;
  leases.hits += count - missed;
  if (missed > 0) leases.wait.record(now_ - admission.started);
}

}  // namespace terrace::engine
