// SPDX-License-Identifier: Apache-2.0
// Prefetches: hints, each tensor by itself, behind every demand.
#include "engine/engine_impl.h"
#include "shm/layout.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kRunningMax = 32;  // per session

}  // namespace

void EngineImpl::on(const Request& request, const Prefetch& body) {
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  const auto tier = tier_of_place(body.place, false);
  if (!tier) return answer(request.id, std::unexpected(tier.error()));
  const auto slots = find_all(**session, body.tensors);
  if (!slots) return answer(request.id, std::unexpected(slots.error()));
  for (const Handle& handle : body.tensors) {
    if ((*session)->prefetches.size() < shm::kSetMax)
      (*session)->prefetches.emplace_back(handle, body.place);
    else
      ++prefetches_.refused;
  }
  stir(**session);
  answer(request.id, ReplyBody{Done{}});
}

void EngineImpl::start_prefetches(Session& session) {
  while (!session.prefetches.empty() && session.prefetches_running < kRunningMax) {
    const auto [handle, place] = session.prefetches.front();
    session.prefetches.pop_front();
    const auto slot = find(session, handle);
    if (!slot) continue;
    const Tensor& tensor = session.at(*slot);
    Admission admission;
    admission.kind = Admission::Kind::kPrefetch;
    admission.place = place;
    admission.tier = *tier_of_place(place, false);
    // Nothing to bring, there already, or on its way by somebody else.
    if (!tensor.written || tensor.lost || is_there(session, admission, tensor) || tensor.admission != 0) continue;
    if (leased(session, *slot) || tensor.pinned != Level::kNone) {
      ++prefetches_.refused;
      continue;
    }
    admission.id = next_admission_++;
    admission.started = now_;
    admission.tensors.push_back(handle);
    enlist(session, std::move(admission));
    ++session.prefetches_running;
  }
}

void EngineImpl::note_lease(Tensor& tensor) {
  if (tensor.prefetched) ++prefetches_.used;
  tensor.prefetched = false;
}

// Somebody waits for what a prefetch is bringing.
void EngineImpl::note_late(Session& session, const Tensor& tensor) {
  Admission* prefetch = find_admission(session, tensor.admission);
  if (prefetch == nullptr || !prefetch->is(Admission::Kind::kPrefetch) || prefetch->waited) return;
  prefetch->waited = true;
  ++prefetches_.late;
  if (tensor.transfer != 0) scheduler_.raise(TransferId{tensor.transfer}, mover::Class::kLatePrefetch, kNever);
}

}  // namespace terrace::engine
