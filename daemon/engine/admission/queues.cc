// SPDX-License-Identifier: Apache-2.0
#include "engine/admission/queues.h"

#include <algorithm>

namespace terrace::engine {

// Its number is the next one. That the system had no memory when nobody waited for it any more says nothing to whoever
// comes now.
void Queues::enlist(Session& session, Admission&& admission) {
  if (Place* const place = session.places[admission.tier].get();
      place != nullptr &&
      std::ranges::find(session.admissions, admission.tier, &Admission::tier) == session.admissions.end())
    place->add_failed = false;
  admission.id = next_admission_++;
  admission.started = turn_.now;
  session.admissions.push_back(std::move(admission));
  wakes_.stir(session);
}

Admission* Queues::find_admission(Session& session, std::uint64_t id) {
  for (Admission& admission : session.admissions)
    if (admission.id == id) return &admission;
  return nullptr;
}

// The one that the request waits for, which there is. Prefetches have none.
Admission& Queues::demand_of(Session& session, RequestId request) {
  const auto found = std::ranges::find_if(session.admissions, [&](const Admission& admission) {
    return admission.request == request && !admission.is(Admission::Kind::kPrefetch);
  });
  TERRACE_CHECK(found != session.admissions.end());
  return *found;
}

// Somebody waits for what a prefetch is bringing.
void Queues::note_late(Session& session, const Tensor& tensor) {
  Admission* prefetch = find_admission(session, tensor.admission);
  if (prefetch == nullptr || !prefetch->is(Admission::Kind::kPrefetch) || prefetch->late) return;
  prefetch->late = true;
  ++counts_.prefetches.late;
  if (tensor.transfer != 0) links_.scheduler.raise(TransferId{tensor.transfer}, mover::Class::kLatePrefetch, kNever);
}

}  // namespace terrace::engine
