// SPDX-License-Identifier: Apache-2.0
// Prefetches: hints, each tensor by itself, behind every demand and before every guess.
#include "engine/engine_impl.h"
#include "shm/layout.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kRunningMax = 32;  // per session
constexpr Time kHintsFirst{};              // before whatever a plan brings, which has a later deadline

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
    if (is_there(session, admission, tensor, shm::Mode::kRead)) note_hint(session, *slot, admission.tier);
    if (tensor.admission != 0) keep_prefetch(session, tensor, admission.tier);
    if (!tensor.written || tensor.lost || is_there(session, admission, tensor, shm::Mode::kRead) ||
        tensor.admission != 0)
      continue;
    if (leased(session, *slot) || tensor.pinned != Level::kNone) {
      ++prefetches_.refused;
      continue;
    }
    admission.id = next_admission_++;
    admission.started = now_;
    admission.deadline = kHintsFirst;
    admission.tensors.push_back(handle);
    enlist(session, std::move(admission));
    ++session.prefetches_running;
  }
}

// What a guess is bringing there is brought for the client from now on; and what was to go once it is there stays.
void EngineImpl::keep_prefetch(Session& session, const Tensor& tensor, std::size_t tier) {
  Admission* const prefetch = find_admission(session, tensor.admission);
  if (prefetch == nullptr || !prefetch->is(Admission::Kind::kPrefetch) || prefetch->tier != tier) return;
  prefetch->revoked = prefetch->planned = false;
  prefetch->deadline = kHintsFirst;
  if (tensor.transfer != 0) scheduler_.raise(TransferId{tensor.transfer}, mover::Class::kPrefetch, kHintsFirst);
}

// Those of these slots that were not begun are not begun any more; those that were are taken back, or go once they are
// there.
void EngineImpl::revoke_prefetches(Session& session, const std::vector<Slot>& slots) {
  const std::uint64_t mark = next_mark_++;
  for (const Slot slot : slots) session.at(slot).mark = mark;
  const auto is_one = [&](const Handle& handle) {
    const Tensor& tensor = session.at(handle.slot);
    return tensor.mark == mark && tensor.incarnation == handle.incarnation;
  };
  std::erase_if(session.prefetches, [&](const auto& prefetch) { return is_one(prefetch.first); });
  for (auto at = session.admissions.begin(); at != session.admissions.end();) {
    Admission& admission = *at++;  // it may end
    const bool brings_one = admission.is(Admission::Kind::kPrefetch) && is_one(admission.tensors.front());
    if (brings_one && !revoke(session, admission)) admission.revoked = true;
  }
}

// Ends it as if it had never been, unless its transfer was handed down. False: it was.
bool EngineImpl::revoke(Session& session, Admission& prefetch) {
  const Slot slot = prefetch.tensors.front().slot;
  if (prefetch.phase == Admission::Phase::kAssembling && !withdraw(session, slot, Activity::kFetching)) return false;
  end_admission(session, prefetch);
  return true;
}

// The client is going to use it there: no guess is better. Until it does, what a plan says of it does not count.
void EngineImpl::note_hint(Session& session, Slot slot, std::size_t tier) {
  session.at(slot).hinted = true;
  if (session.foreseen.plan) session.places[tier]->policy->expect(slot, {session.foreseen.now_ns(), false});
}

void EngineImpl::note_lease(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.prefetched) ++prefetches_.used;
  const bool was_hinted = tensor.hinted;
  tensor.prefetched = tensor.hinted = false;
  if (!was_hinted || !session.foreseen.plan || tensor.published == Level::kNone) return;
  Policy& policy = *place_of(session, tensor, tensor.published).policy;
  if (policy.expected(slot).next_ns <= session.foreseen.now_ns()) policy.expect(slot, {});  // it was this use
}

// Somebody waits for what a prefetch is bringing.
void EngineImpl::note_late(Session& session, const Tensor& tensor) {
  Admission* prefetch = find_admission(session, tensor.admission);
  if (prefetch == nullptr || !prefetch->is(Admission::Kind::kPrefetch) || prefetch->late) return;
  prefetch->late = true;
  ++prefetches_.late;
  if (tensor.transfer != 0) scheduler_.raise(TransferId{tensor.transfer}, mover::Class::kLatePrefetch, kNever);
}

}  // namespace terrace::engine
