// SPDX-License-Identifier: Apache-2.0
#include "engine/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/catalog/facts.h"
#include "engine/values/status.h"
#include "shm/layout.h"

namespace terrace::engine {
namespace {

constexpr Duration kDeclaredMax = std::chrono::hours(24);

// What it asks to have where, taken out of the body.
template <typename Body>
Admission admission_of(Admission::Kind kind, Body& body) {
  Admission admission;
  admission.kind = kind;
  admission.place = body.place;
  admission.tensors = std::move(body.tensors);
  return admission;
}

}  // namespace

void Service::on(const Request& request, Acquire&& body) {
  if (body.passing && body.modes.write())
    return requests_.answer(request.id,
                            fail(ErrorCode::kInvalidArgument,
                                 "a lease to write is a use, and not passing: ask for one to read, or leave it out"));
  if (const auto fit = body.modes.fit(body.tensors.size()); !fit)
    return requests_.answer(request.id, std::unexpected(fit.error()));
  Admission admission = admission_of(Admission::Kind::kAcquire, body);
  admission.passing = body.passing;
  admission.modes = std::move(body.modes);
  admissions_.admit(request, std::move(admission), false);
}

void Service::on(const Request& request, Move&& body) {
  admissions_.admit(request, admission_of(Admission::Kind::kMove, body), true);
}

void Service::on(const Request& request, Pin&& body) {
  admissions_.admit(request, admission_of(Admission::Kind::kPin, body), false);
}

void Service::on(const Request& request, CreateTensors&& body) {
  const auto session = sessions_.session_to_write(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  if (body.tensors.size() > shm::kSetMax)
    return requests_.answer(request.id,
                            fail(ErrorCode::kInvalidArgument,
                                 fmt::format("{} tensors in one call: at most {}", body.tensors.size(), shm::kSetMax)));
  if (const auto good = creation_.check_specs(**session, body.tensors); !good)
    return requests_.answer(request.id, std::unexpected(good.error()));
  Admission admission;
  admission.kind = Admission::Kind::kCreate;
  admission.tier = tiers_.home_id();
  admission.specs = std::move(body.tensors);
  admission.fresh = admission.specs.size();
  admission.request = request.id;
  admission.member = request.session;
  admission.deadline = request.deadline;
  if (!requests_.wait_for(request.id, request.session, request.deadline)) return;
  queues_.enlist(**session, std::move(admission));
}

void Service::on(const Request& request, const DeclareStep& body) {
  const auto session = sessions_.open_session(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  if (const auto good = check_declared(**session, body); !good)
    return requests_.answer(request.id, std::unexpected(good.error()));
  steps_.observe_declared(**session, body);
  requests_.answer(request.id, ReplyBody{Done{}});
}

void Service::on(const Request& request, const DeleteTensors& body) {
  const auto session = sessions_.session_to_write(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  std::vector<Handle> there = body.tensors;
  if (body.again) std::erase_if(there, [&](Handle handle) { return !lookup_.find(**session, handle); });
  const auto slots = lookup_.find_all(**session, there);
  if (!slots) return requests_.answer(request.id, std::unexpected(slots.error()));
  for (const Slot slot : *slots) tensors_.delete_tensor(**session, slot);
  wakes_.changed(**session);
  requests_.answer(request.id, ReplyBody{Done{}});
}

void Service::on(const Request& request, const DontNeed& body) {
  const auto session = sessions_.session_to_write(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  const auto slots = lookup_.find_all(**session, body.tensors);
  if (!slots) return requests_.answer(request.id, std::unexpected(slots.error()));
  for (const Slot slot : *slots) {
    const Tensor& tensor = (*session)->at(slot);
    const Admission* bringing = tensor.admission == 0 ? nullptr : queues_.find_admission(**session, tensor.admission);
    if (bringing != nullptr && !bringing->is(Admission::Kind::kPrefetch))
      return requests_.answer(request.id, fail(ErrorCode::kFailedPrecondition,
                                               fmt::format("tensor '{}' is being brought in for another request",
                                                           records_.name(**session, slot))));
    if (words_.leased(**session, slot))
      return requests_.answer(
          request.id, fail(ErrorCode::kFailedPrecondition,
                           fmt::format("tensor '{}' is leased: release it first", records_.name(**session, slot))));
  }
  for (const Slot slot : *slots) {
    steps_.observe_forgotten(**session, slot);
    lives_.forget(**session, slot);
    lives_.mend(**session, slot);
    const Tensor& tensor = (*session)->at(slot);
    if (tensor.published != Level::kNone || tensor.claimed) continue;
    records_.commit();  // before the word says so too
    words_.unpublish(**session, slot);
  }
  wakes_.changed(**session);
  requests_.answer(request.id, ReplyBody{Done{}});
}

void Service::on(const Request& request, const ListTensors& body) {
  const auto session = sessions_.open_session(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  TensorList list;
  std::uint64_t page_bytes = 0;
  for (std::uint32_t at = body.first_slot; at < (*session)->tensors.size(); ++at) {
    const Tensor& tensor = (*session)->tensors[at];
    if (!tensor.live() || tensor.deleted) continue;
    const TensorRecord record = records_.recorded(**session, Slot{at});
    if (!name_of(record).starts_with(body.prefix)) continue;
    if (page_bytes >= body.page_bytes_max) {
      list.next_slot = at;
      break;
    }
    page_bytes += sizeof(TensorInfo) + record.text.size();
    list.tensors.push_back(tensors_.describe(**session, Slot{at}));
  }
  requests_.answer(request.id, ReplyBody{std::move(list)});
}

void Service::on(const Request& request, const FindTensors& body) {
  const auto session = sessions_.open_session(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  TensorList list;
  for (const std::string& name : body.names) {
    const auto found = (*session)->names.find(name, records_.names_of(**session));
    if (!found)
      return requests_.answer(
          request.id, fail(ErrorCode::kNotFound,
                           fmt::format("there is no tensor '{}': create it first", name.substr(0, kNameBytesMax))));
    list.tensors.push_back(tensors_.describe(**session, *found));
  }
  requests_.answer(request.id, ReplyBody{std::move(list)});
}

void Service::on(const Request& request, const Evict& body) {
  const auto session = sessions_.open_session(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  const auto slots = lookup_.find_all(**session, body.tensors);
  if (!slots) return requests_.answer(request.id, std::unexpected(slots.error()));
  ahead_.revoke_prefetches(**session, *slots);
  for (const Slot slot : *slots) departures_.evict_for_hint(**session, slot);
  wakes_.changed(**session);
  requests_.answer(request.id, ReplyBody{Done{}});
}

void Service::on(const Request& request, const Release& body) {
  const auto found = sessions_.open_session(request.session);
  if (!found) return requests_.answer(request.id, std::unexpected(found.error()));
  Session& session = **found;
  LeaseTable& table = session.find_member(request.session)->table;
  if (const auto fit = body.modes.fit(body.tensors.size()); !fit)
    return requests_.answer(request.id, std::unexpected(fit.error()));
  Result<ReplyBody> result = ReplyBody{Done{}};
  bool ended = false;
  for (std::size_t i = 0; i < body.tensors.size(); ++i) {
    const Handle& handle = body.tensors[i];
    shm::Outcome outcome = shm::Outcome::kStale;
    if (index(handle.slot) < session.tensors.size()) {
      // A deleted tensor's leases end too: its word keeps the incarnation until then.
      const shm::Step step = shm::release(table.word(handle.slot), handle.incarnation, body.modes[i]);
      outcome = step.outcome;
      ended |= outcome == shm::Outcome::kDone && step.word.wanted && !step.word.leased();
      const bool wrote = !session.is_share() || session.at(handle.slot).holder == request.session;
      const bool torn = body.torn && body.modes[i] == shm::Mode::kOverwrite;
      if (outcome == shm::Outcome::kDone && torn && wrote) tensors_.tear(session, handle.slot);
    }
    if (outcome == shm::Outcome::kDone) continue;
    if (!result) continue;  // the rest is released all the same; the first failure is named
    if (outcome == shm::Outcome::kNotLeased)
      result =
          fail(ErrorCode::kFailedPrecondition, fmt::format("tensor '{}' is not leased in this mode: nothing to release",
                                                           records_.name(session, handle.slot)));
    else if (index(handle.slot) >= session.tensors.size())
      result = fail(ErrorCode::kNotFound, fmt::format("no tensor in slot {}", index(handle.slot)));
    else
      result = fail(ErrorCode::kAborted, fmt::format("the tensor of slot {}, incarnation {} was deleted",
                                                     index(handle.slot), handle.incarnation));
  }
  if (ended) {
    wakes_.changed(session);
    wakes_.opens = true;
  }
  requests_.answer(request.id, std::move(result));
}

void Service::on(const Request& request, const Unpin& body) {
  const auto session = sessions_.open_session(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  const auto slots = lookup_.find_all(**session, body.tensors);
  if (!slots) return requests_.answer(request.id, std::unexpected(slots.error()));
  for (const Slot slot : *slots)
    if (!lives_.pinned_by(**session, slot, request.session) && !body.again)
      return requests_.answer(
          request.id, fail(ErrorCode::kFailedPrecondition,
                           fmt::format("tensor '{}' is not pinned by this session", records_.name(**session, slot))));
  for (const Slot slot : *slots)
    if (lives_.pinned_by(**session, slot, request.session)) lives_.unpin(**session, slot);
  wakes_.changed(**session);
  wakes_.opens = true;
  requests_.answer(request.id, ReplyBody{Done{}});
}

void Service::on(const Request& request, const Prefetch& body) {
  const auto session = sessions_.open_session(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  const auto tier = tiers_.tier_of_place(body.place, false);
  if (!tier) return requests_.answer(request.id, std::unexpected(tier.error()));
  const auto slots = lookup_.find_all(**session, body.tensors);
  if (!slots) return requests_.answer(request.id, std::unexpected(slots.error()));
  for (const Handle& handle : body.tensors) {
    if ((*session)->prefetches.size() < shm::kSetMax)
      (*session)->prefetches.emplace_back(handle, body.place);
    else
      ++counts_.prefetches.refused;
  }
  wakes_.stir(**session);
  requests_.answer(request.id, ReplyBody{Done{}});
}

void Service::on(const Request& request, const OpenSession& body) {
  if (registry_.draining)
    return requests_.answer(request.id,
                            fail(ErrorCode::kUnavailable, "the daemon is draining: it opens no more sessions"));
  const bool joins = body.share && !body.share->create;
  if (opening_.records_used() + (body.share && !joins ? 2 : 1) > options_.sessions_max)
    return requests_.answer(
        request.id,
        fail(ErrorCode::kResourceExhausted,
             fmt::format("{} sessions are open, which is the daemon's bound: close one first (a share counts "
                         "as one more than its sessions)",
                         opening_.records_used())));
  if (body.table.size() == 0)
    return requests_.answer(request.id,
                            fail(ErrorCode::kInvalidArgument, "a session needs a lease table of at least one slot"));
  if (const std::size_t most = catalog_.shape().tensors_per_session_max; body.table.size() > most)
    return requests_.answer(
        request.id, fail(ErrorCode::kInvalidArgument,
                         fmt::format("a lease table of {} slots, and the catalog holds {}", body.table.size(), most)));
  if (body.share)
    if (const auto good = opening_.check_share(body); !good)
      return requests_.answer(request.id, std::unexpected(good.error()));
  if (joins) return opening_.join_now(request.id, body);
  auto floors = opening_.floors_of(body);
  if (!floors) return requests_.answer(request.id, std::unexpected(floors.error()));
  if (!requests_.wait_for(request.id, SessionId{}, request.deadline)) return;
  budget_.opens.push_back({request.id, body, std::move(*floors)});
  wakes_.opens = true;
}

void Service::on(const Request& request, const CloseSession&) {
  const auto session = sessions_.open_session(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  if (!requests_.wait_for(request.id, request.session, request.deadline, true)) return;
  (*session)->find_member(request.session)->close_request = request.id;
  opening_.leave(**session, request.session, {ErrorCode::kCancelled, "the session was closed", 0});
}

void Service::on(const Request& request, const MarkStep& body) {
  constexpr std::uint32_t kLastKind = 2;
  const auto session = sessions_.open_session(request.session);
  if (!session) return requests_.answer(request.id, std::unexpected(session.error()));
  if (body.kind > kLastKind)
    return requests_.answer(request.id,
                            fail(ErrorCode::kInvalidArgument,
                                 fmt::format("step kind {}: give 0 (train), 1 (accumulate) or 2 (eval)", body.kind)));
  if (const auto room = records_.check_note(**session, request.session, 0); !room)
    return requests_.answer(request.id, std::unexpected(room.error()));
  records_.note(**session,
                {.request = static_cast<std::uint64_t>(request.id),
                 .session = static_cast<std::uint32_t>(request.session),
                 .kind = GrantRecord::Kind::kStep,
                 .value = static_cast<std::uint32_t>((*session)->step + 1)},
                {});
  ++(*session)->step;
  ++ledger_.steps;
  steps_.observe_step(**session, body.kind);
  steps_.step_over(**session);
  records_.touch(**session);
  requests_.answer(request.id, ReplyBody{Done{}});
}

void Service::on(const Request& request, const GetStatus&) {
  requests_.answer(request.id, ReplyBody{reports_.status()});
}

void Service::on(const Request& request, const Drain&) {
  registry_.draining = true;
  requests_.answer(request.id, ReplyBody{Done{}});
}

Result<void> Service::check_declared(Session& session, const DeclareStep& step) {
  if (step.kind >= session.declared.size())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("step kind {}: give 0 (train), 1 (accumulate) or 2 (eval)", step.kind));
  if (session.is_share())
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("share '{}' has no steps of its own: declare them in an ordinary session", session.share));
  const Declared& so_far = session.declared[step.kind];
  if (step.position > so_far.sets)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("set {} of a step whose first {} are declared: declare them in order, from 0",
                            step.position, so_far.sets));
  if (step.sets.empty()) return fail(ErrorCode::kInvalidArgument, "a step of no sets is declared: name at least one");
  Duration compute = step.position == 0 ? Duration::zero() : so_far.compute;
  for (const DeclareStep::Set& set : step.sets) {
    if (set.tensors.empty())
      return fail(ErrorCode::kInvalidArgument, "a set of no tensors is declared: name at least one");
    compute += set.compute;
    if (compute > kDeclaredMax)
      return fail(ErrorCode::kInvalidArgument, "a step that computes for more than a day is declared: give seconds");
    if (const auto tier = tiers_.tier_of_place(set.place, false); !tier) return std::unexpected(tier.error());
    if (const auto slots = lookup_.find_all(session, set.tensors); !slots) return std::unexpected(slots.error());
  }
  return {};
}

}  // namespace terrace::engine
