// SPDX-License-Identifier: Apache-2.0
// Prefetches: hints, each tensor by itself, behind every demand and before every guess.
#include "engine/admission/ahead.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kRunningMax = 32;  // per session
constexpr Time kHintsFirst{};              // before whatever a plan brings, which has a later deadline

}  // namespace

void Ahead::start_prefetches(Session& session) {
  while (!session.prefetches.empty() && session.prefetches_running < kRunningMax) {
    const auto [handle, place] = session.prefetches.front();
    session.prefetches.pop_front();
    const auto slot = lookup_.find(session, handle);
    if (!slot) continue;
    const Tensor& tensor = session.at(*slot);
    Admission admission;
    admission.kind = Admission::Kind::kPrefetch;
    admission.place = place;
    admission.tier = *tiers_.tier_of_place(place, false);
    // Nothing to bring, there already, or on its way by somebody else.
    if (checks_.is_there(session, admission, tensor, shm::Mode::kRead))
      steps_.note_hint(session, *slot, admission.tier);
    if (tensor.admission != 0) keep_prefetch(session, tensor, admission.tier);
    if (!tensor.written || tensor.lost || checks_.is_there(session, admission, tensor, shm::Mode::kRead) ||
        tensor.admission != 0)
      continue;
    if (words_.leased(session, *slot) || tensor.pinned != Level::kNone) {
      ++counts_.prefetches.refused;
      continue;
    }
    admission.deadline = kHintsFirst;
    admission.tensors.push_back(handle);
    queues_.enlist(session, std::move(admission));
    ++session.prefetches_running;
  }
}

// What a guess is bringing there is brought for the client from now on; and what was to go once it is there stays.
void Ahead::keep_prefetch(Session& session, const Tensor& tensor, TierId tier) {
  Admission* const prefetch = queues_.find_admission(session, tensor.admission);
  if (prefetch == nullptr || !prefetch->is(Admission::Kind::kPrefetch) || prefetch->tier != tier) return;
  prefetch->revoked = prefetch->planned = false;
  prefetch->deadline = kHintsFirst;
  if (tensor.transfer != 0) links_.scheduler.raise(TransferId{tensor.transfer}, mover::Class::kPrefetch, kHintsFirst);
}

// Those of these slots that were not begun are not begun any more; those that were are taken back, or go once they are
// there.
void Ahead::revoke_prefetches(Session& session, const std::vector<Slot>& slots) {
  const std::uint64_t mark = marks_.next++;
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
bool Ahead::revoke(Session& session, Admission& prefetch) {
  const Slot slot = prefetch.tensors.front().slot;
  if (prefetch.phase == Admission::Phase::kAssembling && !transfers_.withdraw(session, slot, Activity::kFetching))
    return false;
  grants_.end_admission(session, prefetch);
  return true;
}

}  // namespace terrace::engine
