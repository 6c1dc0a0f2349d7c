// SPDX-License-Identifier: Apache-2.0
// The engine's side of the lease words: the only place that touches them. What a client scribbled into its own table is
// repaired by overwriting it: it harms that session's bytes alone.
#include <fmt/format.h>

#include "engine/engine_impl.h"
#include "engine/planted.h"

namespace terrace::engine {

bool EngineImpl::leased(const Session& session, Slot slot) const {
  return session.at(slot).published != Level::kNone && session.table.load(slot).leased();
}

// Takes the published copy for the engine, and settles which copies are valid. False: somebody holds a lease.
bool EngineImpl::claim(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.published != Level::kNone && !tensor.claimed);
  const shm::Step step = shm::claim(session.table.word(slot), tensor.incarnation);
  if (step.outcome == shm::Outcome::kLeased && !planted(Plant::kMovedWhileLeased)) return false;
  if (step.outcome != shm::Outcome::kDone || (step.word.dirty && !planted(Plant::kDirtyCountsAsHome)))
    tensor.valid = bit(tensor.published);
  if (step.outcome == shm::Outcome::kDone && step.word.torn) tensor.torn = true;
  if (step.outcome != shm::Outcome::kDone) {
    const shm::Word repaired{.state = shm::State::kClaimed, .turn = step.word.turn, .incarnation = tensor.incarnation};
    shm::publish(session.table.word(slot), repaired);
  }
  tensor.published = Level::kNone;
  tensor.claimed = true;
  touch(session, slot);
  return true;
}

void EngineImpl::publish(Session& session, Slot slot, Level level) {
  publish(session, slot, level, 0, 0, session.table.load(slot).turn);
}

void EngineImpl::publish(Session& session, Slot slot, Level level, std::uint32_t readers, std::uint32_t writers,
                         bool turn) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.published == Level::kNone && tensor.is_valid(level) && level != Level::kBlock);
  const Place& place = place_of(session, tensor, level);
  const shm::Word word{.state = shm::State::kResident,
                       .dirty = writers != 0,
                       .wanted = tensor.wanted != 0,
                       .lent = tensor.extent(level).end() > place.fence,
                       .turn = turn,
                       .torn = tensor.torn,
                       .readers = readers,
                       .writers = writers,
                       .incarnation = tensor.incarnation};
  const Placement at = placement(tensor, level);
  tensor.published = level;
  tensor.claimed = false;
  touch(session, slot);
  if (!planted(Plant::kPublishedUnrecorded)) commit();  // before anybody can lease it there
  session.table.publish(slot, word, at.place, at.offset, tensor.bytes);
}

void EngineImpl::unpublish(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.published == Level::kNone);
  const shm::Word word{.state = shm::State::kAbsent,
                       .turn = session.table.load(slot).turn,
                       .torn = tensor.torn,  // a successor may find the word before the record
                       .incarnation = tensor.incarnation};
  session.table.publish(slot, word, shm::kPlaceNowhere, 0, tensor.bytes);
  tensor.claimed = false;
}

void EngineImpl::publish_best(Session& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (tensor.published != Level::kNone) return;
  const Level level = tensor.written && !tensor.deleted ? fastest_valid(tensor) : Level::kNone;
  if (level == Level::kNone || level == Level::kBlock)
    unpublish(session, slot);
  else
    publish(session, slot, level);
}

// A trainer says in the word that it gave an overwrite up.
void EngineImpl::note_torn(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.torn || tensor.published == Level::kNone || !session.table.load(slot).torn) return;
  tensor.torn = true;
  touch(session, slot);
}

void EngineImpl::want(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.wanted++ == 0 && tensor.published != Level::kNone) shm::want(session.table.word(slot), true);
}

void EngineImpl::unwant(Session& session, Handle handle) {
  const Slot slot = handle.slot;
  Tensor& tensor = session.at(slot);
  if (!tensor.live() || tensor.incarnation != handle.incarnation) return;
  TERRACE_CHECK(tensor.wanted > 0);
  if (--tensor.wanted == 0 && tensor.published != Level::kNone) shm::want(session.table.word(slot), false);
}

std::string EngineImpl::holders(const Session& session, const std::vector<Handle>& handles) const {
  constexpr std::size_t kNamedMax = 4;
  std::string text;
  for (std::size_t i = 0; i < handles.size() && i < kNamedMax; ++i) {
    const Slot slot = handles[i].slot;
    const shm::Word word = session.table.load(slot);
    text += fmt::format("{}'{}' ({} readers, {} writers)", i == 0 ? "" : ", ", session.at(slot).name, word.readers,
                        word.writers);
  }
  if (handles.size() > kNamedMax) text += fmt::format(" and {} more", handles.size() - kNamedMax);
  return text;
}

void EngineImpl::on(const Request& request, const Release& body) {
  const auto found = open_session(request.session);
  if (!found) return answer(request.id, std::unexpected(found.error()));
  Session& session = **found;
  Result<ReplyBody> result = ReplyBody{Done{}};
  bool ended = false;
  for (const Handle& handle : body.tensors) {
    shm::Outcome outcome = shm::Outcome::kStale;
    if (index(handle.slot) < session.tensors.size()) {
      // A deleted tensor's leases end too: its word keeps the incarnation until then.
      const shm::Step step = shm::release(session.table.word(handle.slot), handle.incarnation, body.mode);
      outcome = step.outcome;
      ended |= outcome == shm::Outcome::kDone && step.word.wanted && !step.word.leased();
      if (outcome == shm::Outcome::kDone && body.torn) tear(session, handle.slot);
    }
    if (outcome == shm::Outcome::kDone) continue;
    if (!result) continue;  // the rest is released all the same; the first failure is named
    if (outcome == shm::Outcome::kNotLeased)
      result =
          fail(ErrorCode::kFailedPrecondition,
               fmt::format("tensor '{}' is not leased in this mode: nothing to release", session.at(handle.slot).name));
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
  Admission* bringing = tensor.admission == 0 ? nullptr : find_admission(session, tensor.admission);
  tensor.torn = true;
  touch(session, slot);
  if (tensor.published != Level::kNone) shm::tear(session.table.word(slot), tensor.incarnation);
  forget(session, slot);
  if (bringing != nullptr && reads_content(*bringing))
    fail_admission(session, *bringing, check_content(*bringing, tensor).error());
}

void EngineImpl::on(const Request& request, const Unpin& body) {
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  const auto slots = find_all(**session, body.tensors);
  if (!slots) return answer(request.id, std::unexpected(slots.error()));
  for (const Slot slot : *slots)
    if ((*session)->at(slot).pinned == Level::kNone && !body.again)
      return answer(request.id, fail(ErrorCode::kFailedPrecondition,
                                     fmt::format("tensor '{}' is not pinned", (*session)->at(slot).name)));
  for (const Slot slot : *slots) {
    Tensor& tensor = (*session)->at(slot);
    tensor.pinned = Level::kNone;
    touch(**session, slot);
    if (tensor.idle() && tensor.admission == 0) rest(**session, slot);
  }
  ++(*session)->events;
  stir(**session);
  opens_stirred_ = true;
  answer(request.id, ReplyBody{Done{}});
}

}  // namespace terrace::engine
