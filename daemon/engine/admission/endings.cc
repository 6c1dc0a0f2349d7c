// SPDX-License-Identifier: Apache-2.0
// How admissions end otherwise, and what is counted of them.
#include "engine/admission/grants.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace terrace::engine {

void Grants::fail_admission(Session& session, Admission& admission, Error error) {
  count_waited(admission, false);
  const bool silent = admission.is(Admission::Kind::kPrefetch);
  if (silent) ++counts_.prefetches.refused;
  const RequestId request = admission.request;
  end_admission(session, admission);
  if (!silent) requests_.answer(request, std::unexpected(std::move(error)));
}

void Grants::end_admission(Session& session, Admission& admission) {
  clear_wants(session, admission);
  // The next one may ask the system for a segment again, also in a tier that this one only passed through.
  for (const auto& place : session.places)
    if (place != nullptr) place->add_failed = false;
  const std::uint64_t id = admission.id;
  if (tiers_[admission.tier].mapped() && !session.places[admission.tier]->seams.empty())
    rooms_.unstitch_unfit(session, admission, {});
  if (admission.phase == Admission::Phase::kAssembling) {
    for (const Handle& handle : admission.tensors) {
      Tensor& tensor = session.at(handle.slot);
      TERRACE_CHECK(tensor.admission == id);
      tensor.admission = 0;
      if (tensor.idle()) transfers_.rest(session, handle.slot);
    }
  }
  if (admission.is(Admission::Kind::kPrefetch)) --session.prefetches_running;
  admission.slots.swap(checks_.spare_slots);
  session.admissions.erase(std::ranges::find(session.admissions, id, &Admission::id));
  wakes_.changed(session);
}

void Grants::clear_wants(Session& session, Admission& admission) {
  for (const Handle& handle : admission.wanted) words_.unwant(session, handle);
  admission.wanted.clear();
  for (const Handle& handle : admission.awaited) {
    Tensor& tensor = session.at(handle.slot);
    if (tensor.incarnation != handle.incarnation || tensor.awaited_by != admission.id) continue;
    tensor.awaited_by = 0;
    words_.show_wanted(session, handle.slot);
    wakes_.changed(session);  // whoever came later may have it now
  }
  admission.awaited.clear();
}

Error Grants::expired(Session& session, const Admission& admission) const {
  const std::string former =
      links_.former_at_work   ? "; the block tier is not served before the last read and write of a former daemon have "
                                "ended"
      : links_.outage.lasts() ? "; " + links_.outage.note()
                              : "";
  if (admission.phase == Admission::Phase::kAssembling)
    return {ErrorCode::kDeadlineExceeded,
            fmt::format("{} of {} tensors were still on their way", admission.pending, admission.tensors.size()), 0};
  if (admission.block == Admission::Block::kLeases)
    return {ErrorCode::kResourceExhausted,
            fmt::format("no room in '{}' until leases end: {}", tiers_[admission.tier].options.name,
                        holders_.holders(session, admission.wanted)),
            0};
  if (admission.block == Admission::Block::kOthers)
    return {ErrorCode::kDeadlineExceeded,
            fmt::format("other sessions of share '{}' still held leases: {}", session.share,
                        holders_.holders(session, admission.awaited)),
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
void Grants::count_waited(const Admission& admission, bool granted) {
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
  if (missed > 0) leases.wait.record(turn_.now - admission.started);
}

}  // namespace terrace::engine
