// SPDX-License-Identifier: Apache-2.0
// The tensors of a set come, one transfer after the other.
#include "engine/admission/grants.h"

namespace terrace::engine {

bool Grants::advance(Session& session, Admission& admission, Slot slot) {
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
      admission.planned ? turn_.now + Duration(admission.due_ns - session.foreseen.now_ns()) : admission.deadline;
  transfers_.start(session, slot, flight, {urgency, deadline});
  return true;
}

void Grants::arrived(Session& session, Slot slot) {
  const std::uint64_t id = session.at(slot).admission;
  if (id == 0) return transfers_.rest(session, slot);
  Admission* admission = queues_.find_admission(session, id);
  TERRACE_CHECK(admission != nullptr && admission->pending > 0);
  if (advance(session, *admission, slot)) return;
  if (--admission->pending == 0) grant(session, *admission);
}

}  // namespace terrace::engine
