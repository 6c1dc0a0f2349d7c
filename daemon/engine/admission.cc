// SPDX-License-Identifier: Apache-2.0
// Admissions: a set of tensors is brought to a place, all or nothing. From the request to the reservation.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine_impl.h"

namespace terrace::engine {

void EngineImpl::on(const Request& request, Acquire&& body) {
  if (body.passing && body.modes.write())
    return answer(request.id, fail(ErrorCode::kInvalidArgument,
                                   "a lease to write is a use, and not passing: ask for one to read, or leave it out"));
  if (const auto fit = body.modes.fit(body.tensors.size()); !fit)
    return answer(request.id, std::unexpected(fit.error()));
  Admission admission;
  admission.passing = body.passing;
  admission.kind = Admission::Kind::kAcquire;
  admission.modes = std::move(body.modes);
  admission.place = body.place;
  admission.tensors = std::move(body.tensors);
  admit(request, std::move(admission), false);
}

void EngineImpl::on(const Request& request, Move&& body) {
  Admission admission;
  admission.kind = Admission::Kind::kMove;
  admission.place = body.place;
  admission.tensors = std::move(body.tensors);
  admit(request, std::move(admission), true);
}

void EngineImpl::on(const Request& request, Pin&& body) {
  Admission admission;
  admission.kind = Admission::Kind::kPin;
  admission.place = body.place;
  admission.tensors = std::move(body.tensors);
  admit(request, std::move(admission), false);
}

void EngineImpl::admit(const Request& request, Admission&& admission, bool with_block) {
  const bool writes = admission.is(Admission::Kind::kAcquire) && admission.modes.write();
  const auto session = writes ? session_to_write(request.session) : open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  const auto tier = tier_of_place(admission.place, with_block);
  if (!tier) return answer(request.id, std::unexpected(tier.error()));
  if (const auto found = find_set(**session, admission); !found) {
    ++tiers_[*tier].leases.errors;
    return answer(request.id, std::unexpected(found.error()));
  }
  admission.request = request.id;
  admission.member = request.session;
  admission.tier = *tier;
  admission.id = next_admission_++;
  admission.started = now_;
  admission.deadline = request.deadline;
  if (!wait_for(request.id, request.session, request.deadline)) return;
  enlist(**session, std::move(admission));
}

// That the system had no memory when nobody waited for it any more says nothing to whoever comes now.
void EngineImpl::enlist(Session& session, Admission&& admission) {
  if (Place* const place = session.places[admission.tier].get();
      place != nullptr &&
      std::ranges::find(session.admissions, admission.tier, &Admission::tier) == session.admissions.end())
    place->add_failed = false;
  session.admissions.push_back(std::move(admission));
  stir(session);
}

Admission* EngineImpl::find_admission(Session& session, std::uint64_t id) {
  for (Admission& admission : session.admissions)
    if (admission.id == id) return &admission;
  return nullptr;
}

// The one that the request waits for, which there is. Prefetches have none.
Admission& EngineImpl::demand_of(Session& session, RequestId request) {
  const auto found = std::ranges::find_if(session.admissions, [&](const Admission& admission) {
    return admission.request == request && !admission.is(Admission::Kind::kPrefetch);
  });
  TERRACE_CHECK(found != session.admissions.end());
  return *found;
}

// Published where the admission wants it, and to whoever asks, in the mode that it wants it in.
bool EngineImpl::is_there(const Session& session, const Admission& admission, const Tensor& tensor,
                          shm::Mode mode) const {
  if (tensor.published != tiers_[admission.tier].level || !at_tier(tensor, admission.tier)) return false;
  if (!session.is_share()) return true;
  if (admission.is(Admission::Kind::kPin)) return !pinned_by_another(session, admission, tensor);
  if (!admission.is(Admission::Kind::kAcquire)) return true;
  return tensor.holder == SessionId{} ? mode == shm::Mode::kRead : tensor.holder == admission.member;
}

// It is where it is wanted, for another member alone, and at rest.
bool EngineImpl::reads_of_another(const Admission& admission, const Tensor& tensor, shm::Mode mode) const {
  return admission.is(Admission::Kind::kAcquire) && mode == shm::Mode::kRead && tensor.holder != SessionId{} &&
         tensor.holder != admission.member && at_tier(tensor, admission.tier) &&
         tensor.published == tiers_[admission.tier].level && tensor.idle() && tensor.admission == 0 &&
         tensor.wanted == 0 && !waits_behind(admission, tensor);
}

// A pin is one session's, and ends with it.
bool EngineImpl::pinned_by_another(const Session& session, const Admission& admission, const Tensor& tensor) {
  return session.is_share() && tensor.pinned != Level::kNone && tensor.pinner != admission.member;
}

// Somebody earlier waits for its leases to end.
bool EngineImpl::waits_behind(const Admission& admission, const Tensor& tensor) {
  return tensor.awaited_by != 0 && tensor.awaited_by < admission.id;
}

bool EngineImpl::all_there(const Session& session, const Admission& admission, const std::vector<Slot>& slots) const {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& tensor = session.at(slots[i]);
    if (!is_there(session, admission, tensor, admission.modes[i]) || tensor.wanted != 0 ||
        waits_behind(admission, tensor) || session.word(slots[i]).torn ||
        (is_gone(session, tensor) && !leased(session, slots[i])))
      return false;
  }
  return true;
}

bool EngineImpl::reads_content(const Admission& admission, shm::Mode mode) {
  return admission.is(Admission::Kind::kMove) ||
         (admission.is(Admission::Kind::kAcquire) && mode != shm::Mode::kOverwrite);
}

Result<void> EngineImpl::check_content(const Session& session, const Admission& admission, Slot slot,
                                       shm::Mode mode) const {
  const Tensor& tensor = session.at(slot);
  const bool reads = reads_content(admission, mode);
  const bool may_be_new = admission.is(Admission::Kind::kAcquire) && mode == shm::Mode::kWrite;
  if (reads && tensor.lost)
    return fail(ErrorCode::kDataLoss, fmt::format("the bytes of tensor '{}' are lost{}: overwrite it",
                                                  name(session, slot), how_lost(tensor)));
  if (reads && tensor.torn)
    return fail(
        ErrorCode::kFailedPrecondition,
        fmt::format("tensor '{}' is torn: an overwrite ended before it was whole; overwrite it", name(session, slot)));
  if (reads && !may_be_new && !tensor.written)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tensor '{}' was never written (or its content was given up): write it first",
                            name(session, slot)));
  return {};
}

// Whether every tensor can be moved now. An error: one of them never can while things are as they are.
Result<bool> EngineImpl::ready_to_start(Session& session, Admission& admission, const std::vector<Slot>& slots) {
  const Level level = tiers_[admission.tier].level;
  bool ready = true;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Slot slot = slots[i];
    const shm::Mode mode = admission.modes[i];
    Tensor& tensor = session.at(slot);
    if (tensor.pinned != Level::kNone && !(tensor.pinned == level && at_tier(tensor, admission.tier)))
      return fail(ErrorCode::kFailedPrecondition,
                  fmt::format("tensor '{}' is pinned at {}: unpin it first", name(session, slot),
                              tiers_[tier_index(tensor, tensor.pinned)].leases.name));
    if (admission.is(Admission::Kind::kPin) && pinned_by_another(session, admission, tensor))
      return fail(ErrorCode::kFailedPrecondition,
                  fmt::format("tensor '{}' is pinned by session {} of share '{}'", name(session, slot),
                              static_cast<std::uint32_t>(tensor.pinner), session.share));
    if (reads_of_another(admission, tensor, mode)) share(session, slot);
    const bool there = is_there(session, admission, tensor, mode);
    if (!there && leased(session, slot)) {
      if (const auto awaited = await_others(session, admission, slot); !awaited)
        return std::unexpected(awaited.error());
      ready = false;
      continue;
    }
    const bool busy = !tensor.idle() && !may_move(tensor) && !(there && tensor.activity == Activity::kCleaning);
    // Whoever waits for this one's leases in a share is not waited for: what is there is leased past it.
    const bool queues = (tensor.wanted != 0 || waits_behind(admission, tensor)) &&
                        !(there && admission.is(Admission::Kind::kAcquire) && must_not_wait(session, admission));
    if (busy || tensor.admission != 0 || queues) {
      if (tensor.admission != 0 && !admission.is(Admission::Kind::kPrefetch)) note_late(session, tensor);
      ready = false;
      continue;
    }
    give_up_gone(session, slot);
    note_torn(session, slot);
    if (const auto good = check_content(session, admission, slot, mode); !good) return std::unexpected(good.error());
    if (level == Level::kDevice && at_tier(tensor, admission.tier) && is_gone(session, tensor) &&
        !leased(session, slot))
      return fail(ErrorCode::kUnavailable,
                  fmt::format("tensor '{}' keeps a place in memory of {} that is gone ({}): unpin it, or delete it",
                              name(session, slot), tiers_[admission.tier].options.name, tiers_[admission.tier].loss));
    if (former_at_work_ && needs_block(admission, tensor, mode)) {
      ready = false;
      continue;
    }
    const bool elsewhere = level == Level::kDevice && tensor.has(level) && !at_tier(tensor, admission.tier);
    if (elsewhere && place_of(session, tensor, level).write_back_error)
      return std::unexpected(*place_of(session, tensor, level).write_back_error);
    if (elsewhere && !admission.behind)
      ready &= evict(session, slot, level, EvictionReason::kMove, {mover::Class::kDemand, admission.deadline}, false) ==
               Eviction::kDropped;
    else
      ready &= !elsewhere;
  }
  go_before_write_backs(session, admission, slots, ready && !admission.behind);
  return ready;
}

// Write-backs of its tensors may have been begun for nobody. Who goes on now takes them back, as far as they were not
// handed down yet; who waits for something else as well has them go on sooner.
void EngineImpl::go_before_write_backs(Session& session, const Admission& admission, const std::vector<Slot>& slots,
                                       bool ready) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& tensor = session.at(slots[i]);
    const bool writes_back = tensor.activity == Activity::kCleaning || tensor.activity == Activity::kEvicting;
    if (!writes_back || is_there(session, admission, tensor, admission.modes[i])) continue;
    if (ready)
      give_up_clean(session, slots[i]);
    else
      scheduler_.raise(TransferId{tensor.transfer}, admission.write_back_class(), admission.deadline);
  }
}

void EngineImpl::try_start(Session& session, Admission& admission) {
  admission.missing_bytes = 0;
  if (admission.is(Admission::Kind::kCreate)) return try_create(session, admission);
  const std::vector<Slot>& slots = admission.slots;
  if (const auto found = find_set(session, admission); !found) return fail_admission(session, admission, found.error());
  const bool out = tiers_[admission.tier].failed && !slots.empty();
  if (!out && tiers_[admission.tier].mapped() && all_there(session, admission, slots)) return grant(session, admission);
  const auto ready = out ? std::unexpected(out_of_use(session, admission)) : ready_to_start(session, admission, slots);
  if (!ready) {
    // A place that is gone may have been pinned by an earlier try, whose answer was lost: who is refused has none.
    const auto is_in_vain = [&](Slot slot) {
      const Tensor& tensor = session.at(slot);
      return tensor.pinned == Level::kDevice && is_gone(session, tensor) && pinned_by(session, slot, admission.member);
    };
    for (const Slot slot : slots)
      if (admission.is(Admission::Kind::kPin) && is_in_vain(slot)) unpin(session, slot);
    return fail_admission(session, admission, ready.error());
  }
  if (!*ready && session.is_share()) drop_wants(session, admission);
  if (!*ready || admission.behind) {
    admission.block = admission.awaited.empty() ? Admission::Block::kBusy : Admission::Block::kOthers;
    admission.waited = true;
    return;
  }
  Error refusal;
  set_mark_ = next_mark_++;
  for (const Slot slot : slots) session.at(slot).mark = set_mark_;
  const Room room = reserve(session, admission, slots, refusal);
  set_mark_ = UINT64_MAX;
  if (room == Room::kRefused) return fail_admission(session, admission, refusal);
  if (room == Room::kReady) return assemble(session, admission, slots);
  admission.waited = true;
  admission.block = block_of(room);
}

Admission::Block EngineImpl::block_of(Room room) {
  switch (room) {
    case Room::kReady:
      return Admission::Block::kNothing;
    case Room::kLeases:
      return Admission::Block::kLeases;
    case Room::kOthers:
      return Admission::Block::kOthers;
    default:
      return Admission::Block::kSpace;
  }
}

// A copy in memory on the way from block to device is worth having, if its extent costs no wait.
bool EngineImpl::wants_staging(const Admission& admission, const Tensor& tensor, shm::Mode mode) const {
  return tiers_[admission.tier].level == Level::kDevice && memory_tier_ != SIZE_MAX && tensor.written && !tensor.lost &&
         !tensor.has(Level::kMemory) && tensor.valid == bit(Level::kBlock) && mode != shm::Mode::kOverwrite;
}

// Memory that was never taken yet is worth the wait for a segment.
bool EngineImpl::staging_grows(Session& session, const Admission& admission, const std::vector<Slot>& slots) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (wants_staging(admission, session.at(slots[i]), admission.modes[i]))
      bytes += session.at(slots[i]).extent_bytes();
  if (bytes == 0) return false;
  const Place& memory = *session.places[memory_tier_];
  return memory.space.free_bytes() < bytes && (memory.adding_bytes > 0 || grow(session, memory_tier_));
}

// Room for every copy that is missing in the target tier, the lower tier's first; then the copies' extents.
EngineImpl::Room EngineImpl::reserve(Session& session, Admission& admission, const std::vector<Slot>& slots,
                                     Error& refusal) {
  if (staging_grows(session, admission, slots)) return Room::kWait;
  auto& [missing, sizes, offsets] = missing_;
  missing_.clear();
  for (const Slot slot : slots) {
    if (!tiers_[admission.tier].mapped() || at_tier(session.at(slot), admission.tier)) continue;
    missing.push_back(slot);
    sizes.push_back(session.at(slot).extent_bytes());
  }
  if (!sizes.empty()) {
    const Room room = make_room(session, admission, sizes, offsets, refusal);
    if (room != Room::kReady) return room;
  }
  const auto claimed = claim_all(session, admission, slots);
  if (!claimed || !*claimed)
    for (std::size_t i = 0; i < offsets.size(); ++i) free_extent(session, admission.tier, {offsets[i], sizes[i]});
  if (!claimed) refusal = claimed.error();
  if (!claimed || !*claimed) return claimed ? Room::kOthers : Room::kRefused;
  for (std::size_t i = 0; i < missing.size(); ++i) add_copy(session, missing[i], admission.tier, offsets[i]);
  return Room::kReady;
}

// Takes the words of those that are published elsewhere; none if somebody leases one, or tore what is to be read.
// False: it is to wait for whoever does.
Result<bool> EngineImpl::claim_all(Session& session, Admission& admission, const std::vector<Slot>& slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& tensor = session.at(slots[i]);
    const shm::Mode mode = admission.modes[i];
    if (tensor.published == Level::kNone || is_there(session, admission, tensor, mode)) continue;
    const bool mine = claim(session, slots[i]);
    const Result<void> good =
        mine ? check_content(session, admission, slots[i], mode) : await_others(session, admission, slots[i]);
    if (mine && good) continue;
    for (std::size_t j = 0; j <= i; ++j)
      if (session.at(slots[j]).claimed) publish_best(session, slots[j]);
    if (!good) return std::unexpected(good.error());
    return false;
  }
  return true;
}

void EngineImpl::assemble(Session& session, Admission& admission, const std::vector<Slot>& slots) {
  clear_wants(session, admission);
  admission.phase = Admission::Phase::kAssembling;
  admission.block = Admission::Block::kNothing;
  for (const Slot slot : slots) session.at(slot).admission = admission.id;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::uint64_t offset = 0;
    const Tensor& tensor = session.at(slots[i]);
    const shm::Mode mode = admission.modes[i];
    if (wants_staging(admission, tensor, mode) &&
        allocate_by_dropping(session, memory_tier_, tensor.extent_bytes(), offset))
      add_copy(session, slots[i], memory_tier_, offset);
    if (mode != shm::Mode::kOverwrite && advance(session, admission, slots[i])) ++admission.pending;
  }
  admission.fetched = admission.pending;
  if (admission.pending == 0) grant(session, admission);
}

bool EngineImpl::advance(Session& session, Admission& admission, Slot slot) {
  const Tensor& tensor = session.at(slot);
  const Level target = tiers_[admission.tier].level;
  if (tensor.deleted || tensor.published != Level::kNone || tensor.is_valid(target)) return false;
  if (admission.revoked && !admission.late) return false;
  const bool content = tensor.written && !tensor.lost;
  if (!content && !admission.is(Admission::Kind::kAcquire)) return false;  // pinned before it is written
  Flight flight{.session = session.id, .slot = slot, .activity = Activity::kFetching};
  flight.from = content ? fastest_valid(tensor) : Level::kNone;
  const bool staged = flight.from == Level::kBlock && target == Level::kDevice && tensor.has(Level::kMemory);
  flight.to = staged ? Level::kMemory : target;
  const mover::Class prefetched = admission.late ? mover::Class::kLatePrefetch : mover::Class::kPrefetch;
  const mover::Class urgency = admission.is(Admission::Kind::kPrefetch) ? prefetched : mover::Class::kDemand;
  const Time deadline =
      admission.planned ? now_ + Duration(admission.due_ns - session.foreseen.now_ns()) : admission.deadline;
  start(session, slot, flight, {urgency, deadline});
  return true;
}

void EngineImpl::arrived(Session& session, Slot slot) {
  const std::uint64_t id = session.at(slot).admission;
  if (id == 0) return rest(session, slot);
  Admission* admission = find_admission(session, id);
  TERRACE_CHECK(admission != nullptr && admission->pending > 0);
  if (advance(session, *admission, slot)) return;
  if (--admission->pending == 0) grant(session, *admission);
}

}  // namespace terrace::engine
