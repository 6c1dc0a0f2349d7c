// SPDX-License-Identifier: Apache-2.0
// Leases that end over requests, and pins that do.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine_impl.h"

namespace terrace::engine {

void EngineImpl::on(const Request& request, const Release& body) {
  const auto found = open_session(request.session);
  if (!found) return answer(request.id, std::unexpected(found.error()));
  Session& session = **found;
  LeaseTable& table = session.find_member(request.session)->table;
  if (const auto fit = body.modes.fit(body.tensors.size()); !fit)
    return answer(request.id, std::unexpected(fit.error()));
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
      if (outcome == shm::Outcome::kDone && torn && wrote) tear(session, handle.slot);
    }
    if (outcome == shm::Outcome::kDone) continue;
    if (!result) continue;  // the rest is released all the same; the first failure is named
    if (outcome == shm::Outcome::kNotLeased)
      result =
          fail(ErrorCode::kFailedPrecondition,
               fmt::format("tensor '{}' is not leased in this mode: nothing to release", name(session, handle.slot)));
    else if (index(handle.slot) >= session.tensors.size())
      result = fail(ErrorCode::kNotFound, fmt::format("no tensor in slot {}", index(handle.slot)));
    else
      result = fail(ErrorCode::kAborted, fmt::format("the tensor of slot {}, incarnation {} was deleted",
                                                     index(handle.slot), handle.incarnation));
  }
  if (ended) {
    ++session.events;
    stir(session);
    opens_stirred_ = true;
  }
  answer(request.id, std::move(result));
}

// An overwrite was given up: what is there is neither the old content nor the new, whoever else still leases it.
void EngineImpl::tear(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.deleted) return;
  if (tensor.published != Level::kNone && session.is_shared(tensor)) return;  // nobody overwrites it
  Admission* bringing = tensor.admission == 0 ? nullptr : find_admission(session, tensor.admission);
  tensor.torn = true;
  touch(session, slot);
  if (tensor.published != Level::kNone)
    for (Member& member : session.members)
      if (Session::shows(member, tensor)) shm::tear(member.table.word(slot), tensor.incarnation);
  forget(session, slot);
  if (bringing == nullptr) return;
  const auto at = std::ranges::find(bringing->slots, slot) - bringing->slots.begin();
  const shm::Mode mode = bringing->modes[static_cast<std::size_t>(at)];
  if (reads_content(*bringing, mode))
    fail_admission(session, *bringing, check_content(session, *bringing, slot, mode).error());
}

bool EngineImpl::pinned_by(const Session& session, Slot slot, SessionId member) {
  const Tensor& tensor = session.at(slot);
  return tensor.pinned != Level::kNone && (!session.is_share() || tensor.pinner == member);
}

void EngineImpl::unpin(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  tensor.pinned = Level::kNone;
  tensor.pinner = SessionId{};
  touch(session, slot);
  if (tensor.idle() && tensor.admission == 0) rest(session, slot);
}

void EngineImpl::on(const Request& request, const Unpin& body) {
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  const auto slots = find_all(**session, body.tensors);
  if (!slots) return answer(request.id, std::unexpected(slots.error()));
  for (const Slot slot : *slots)
    if (!pinned_by(**session, slot, request.session) && !body.again)
      return answer(request.id, fail(ErrorCode::kFailedPrecondition,
                                     fmt::format("tensor '{}' is not pinned by this session", name(**session, slot))));
  for (const Slot slot : *slots)
    if (pinned_by(**session, slot, request.session)) unpin(**session, slot);
  ++(*session)->events;
  stir(**session);
  opens_stirred_ = true;
  answer(request.id, ReplyBody{Done{}});
}

}  // namespace terrace::engine
