// SPDX-License-Identifier: Apache-2.0
#include "engine/admission/admissions.h"

#include <fmt/format.h>

#include <bitset>
#include <utility>

namespace terrace::engine {

void Admissions::admit(const Request& request, Admission&& admission, bool with_block) {
  const bool writes = admission.is(Admission::Kind::kAcquire) && admission.modes.write();
  const auto session = writes ? sessions_.session_to_write(request.session) : sessions_.open_session(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  const auto tier = tiers_.tier_of_place(admission.place, with_block);
  if (!tier) return requests_.answer(request.id, std::unexpected(tier.error()));
  if (const auto found = checks_.find_set(**session, admission); !found) {
    ++tiers_[*tier].leases.errors;
    return requests_.answer(request.id, std::unexpected(found.error()));
  }
  admission.request = request.id;
  admission.member = request.session;
  admission.tier = *tier;
  admission.deadline = request.deadline;
  if (!requests_.wait_for(request.id, request.session, request.deadline)) return;
  queues_.enlist(**session, std::move(admission));
}

// In order of arrival; demands before prefetches.
void Admissions::try_admissions(Session& session, bool prefetches) {
  std::bitset<kTiersMax> closed;       // somebody earlier is making room there
  std::bitset<kTiersMax> planned_for;  // a plan is, which a request need not wait for
  for (auto at = session.admissions.begin(); at != session.admissions.end();) {
    Admission& admission = *at++;  // it may end
    if (admission.phase != Admission::Phase::kWaiting) continue;
    if (admission.is(Admission::Kind::kPrefetch) != prefetches) continue;
    if (admission.planned && session.awaited(false)[index(admission.tier)]) continue;
    const TierId tier = admission.tier;
    const std::uint64_t id = admission.id;
    const bool awaits_room = admission.block == Admission::Block::kSpace && rooms_.room_is_coming(session, admission);
    if (admission.seen_events != session.events && !awaits_room) {
      admission.behind = closed[index(tier)] || (admission.planned && planned_for[index(tier)]);
      admission.seen_events = admission.behind ? 0 : session.events;
      try_start(session, admission);
      if (queues_.find_admission(session, id) == nullptr) continue;
    }
    // One that was created meanwhile would take bytes for good that this one has counted on.
    const bool keeps_order = admission.block == Admission::Block::kSpace ||
                             (admission.is(Admission::Kind::kCreate) && admission.block == Admission::Block::kLeases);
    if (admission.phase == Admission::Phase::kWaiting && keeps_order)
      (admission.planned ? planned_for : closed)[index(tier)] = true;
  }
}

void Admissions::try_start(Session& session, Admission& admission) {
  admission.missing_bytes = 0;
  if (admission.is(Admission::Kind::kCreate)) return creation_.try_create(session, admission);
  const std::vector<Slot>& slots = admission.slots;
  if (const auto found = checks_.find_set(session, admission); !found)
    return grants_.fail_admission(session, admission, found.error());
  const bool out = tiers_[admission.tier].failed && !slots.empty();
  if (!out && tiers_[admission.tier].mapped() && checks_.all_there(session, admission, slots))
    return grants_.grant(session, admission);
  const auto ready =
      out ? std::unexpected(checks_.out_of_use(session, admission)) : ready_to_start(session, admission, slots);
  if (!ready) {
    // A place that is gone may have been pinned by an earlier try, whose answer was lost: who is refused has none.
    const auto is_in_vain = [&](Slot slot) {
      const Tensor& tensor = session.at(slot);
      return tensor.pinned == Level::kDevice && tiers_.is_gone(session, tensor) &&
             lives_.pinned_by(session, slot, admission.member);
    };
    for (const Slot slot : slots)
      if (admission.is(Admission::Kind::kPin) && is_in_vain(slot)) lives_.unpin(session, slot);
    return grants_.fail_admission(session, admission, ready.error());
  }
  if (!*ready && session.is_share()) rooms_.drop_wants(session, admission);
  if (!*ready || admission.behind) {
    admission.block = admission.awaited.empty() ? Admission::Block::kBusy : Admission::Block::kOthers;
    admission.waited = true;
    return;
  }
  Error refusal;
  marks_.set = marks_.next++;
  for (const Slot slot : slots) session.at(slot).mark = marks_.set;
  const Room room = reserve(session, admission, slots, refusal);
  marks_.set = UINT64_MAX;
  if (room == Room::kRefused) return grants_.fail_admission(session, admission, refusal);
  if (room == Room::kReady) return assemble(session, admission, slots);
  admission.waited = true;
  admission.block = block_of(room);
}

// Write-backs of its tensors may have been begun for nobody. Who goes on now takes them back, as far as they were not
// handed down yet; who waits for something else as well has them go on sooner.
void Admissions::go_before_write_backs(Session& session, const Admission& admission, const std::vector<Slot>& slots,
                                       bool ready) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& tensor = session.at(slots[i]);
    const bool writes_back = tensor.activity == Activity::kCleaning || tensor.activity == Activity::kEvicting;
    if (!writes_back || checks_.is_there(session, admission, tensor, admission.modes[i])) continue;
    if (ready)
      transfers_.give_up_clean(session, slots[i]);
    else
      links_.scheduler.raise(TransferId{tensor.transfer}, admission.write_back_class(), admission.deadline);
  }
}

// Whether every tensor can be moved now. An error: one of them never can while things are as they are.
Result<bool> Admissions::ready_to_start(Session& session, Admission& admission, const std::vector<Slot>& slots) {
  const Level level = tiers_[admission.tier].level;
  bool ready = true;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = slots[i];
    const shm::Mode mode = admission.modes[i];
    Tensor& tensor = session.at(slot);
    if (tensor.pinned != Level::kNone && !(tensor.pinned == level && tiers_.at_tier(tensor, admission.tier)))
      return fail(ErrorCode::kFailedPrecondition,
                  fmt::format("tensor '{}' is pinned at {}: unpin it first", records_.name(session, slot),
                              tiers_[tiers_.tier_index(tensor, tensor.pinned)].leases.name));
    if (admission.is(Admission::Kind::kPin) && checks_.pinned_by_another(session, admission, tensor))
      return fail(ErrorCode::kFailedPrecondition,
                  fmt::format("tensor '{}' is pinned by session {} of share '{}'", records_.name(session, slot),
                              static_cast<std::uint32_t>(tensor.pinner), session.share));
    if (checks_.reads_of_another(admission, tensor, mode)) words_.share(session, slot);
    const bool there = checks_.is_there(session, admission, tensor, mode);
    if (!there && words_.leased(session, slot)) {
      if (const auto awaited = checks_.await_others(session, admission, slot); !awaited)
        return std::unexpected(awaited.error());
      ready = false;
      continue;
    }
    const bool busy =
        !tensor.idle() && !transfers_.may_move(tensor) && !(there && tensor.activity == Activity::kCleaning);
    // Whoever waits for this one's leases in a share is not waited for: what is there is leased past it.
    const bool queues =
        (tensor.wanted != 0 || checks_.waits_behind(admission, tensor)) &&
        !(there && admission.is(Admission::Kind::kAcquire) && holders_.must_not_wait(session, admission.member));
    if (busy || tensor.admission != 0 || queues) {
      if (tensor.admission != 0 && !admission.is(Admission::Kind::kPrefetch)) queues_.note_late(session, tensor);
      ready = false;
      continue;
    }
    transfers_.give_up_gone(session, slot);
    words_.note_torn(session, slot);
    if (const auto good = checks_.check_content(session, admission, slot, mode); !good)
      return std::unexpected(good.error());
    if (level == Level::kDevice && tiers_.at_tier(tensor, admission.tier) && tiers_.is_gone(session, tensor) &&
        !words_.leased(session, slot))
      return fail(
          ErrorCode::kUnavailable,
          fmt::format("tensor '{}' keeps a place in memory of {} that is gone ({}): unpin it, or delete it",
                      records_.name(session, slot), tiers_[admission.tier].options.name, tiers_[admission.tier].loss));
    if (const auto good = checks_.check_writable(session, admission, slot); !good) return std::unexpected(good.error());
    if (links_.former_at_work && checks_.needs_block(admission, tensor, mode)) {
      ready = false;
      continue;
    }
    const bool elsewhere = level == Level::kDevice && tensor.has(level) && !tiers_.at_tier(tensor, admission.tier);
    if (elsewhere && tiers_.place_of(session, tensor, level).write_back_error)
      return std::unexpected(*tiers_.place_of(session, tensor, level).write_back_error);
    if (elsewhere && !admission.behind)
      ready &= evictions_.evict(session, slot, level, EvictionReason::kMove,
                                {mover::Class::kDemand, admission.deadline}) == Eviction::kDropped;
    else
      ready &= !elsewhere;
  }
  go_before_write_backs(session, admission, slots, ready && !admission.behind);
  return ready;
}

}  // namespace terrace::engine
