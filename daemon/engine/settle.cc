// SPDX-License-Identifier: Apache-2.0
// After a restore: what nobody was told of is undone, and words and records are brought together again.
#include "engine/restorer.h"

#include <algorithm>

#include "engine/values/planted.h"

namespace terrace::engine {

// Leases that their trainer was not told of end; tensors that it was not told of go.
std::map<SessionId, Unanswered> Restorer::undo_unanswered(std::span<const Survivor> survivors) {
  std::map<SessionId, Unanswered> unanswered;
  catalog_.each_note([&](const GrantRecord& grant, std::span<const GrantedSlot> slots) {
    const auto survivor = std::ranges::find(survivors, SessionId{grant.session}, &Survivor::session);
    Session* session = sessions_.find_session(SessionId{grant.session});
    if (session == nullptr || survivor == survivors.end()) return;
    Member* member = session->find_member(SessionId{grant.session});
    if (member == nullptr) return;
    const auto beyond = static_cast<std::int32_t>(survivor->completions - grant.position);
    if (grant.answering != 0 && beyond >= 0) return;
    if (grant.kind == GrantRecord::Kind::kStep && session->step != 0 &&
        static_cast<std::uint32_t>(session->step) == grant.value) {
      --session->step;
      --ledger_.steps;
    }
    for (const GrantedSlot& granted : slots) {
      if (granted.slot >= session->tensors.size()) continue;
      const Slot slot{granted.slot};
      const Tensor& tensor = session->at(slot);
      if (!tensor.live()) continue;
      if (grant.kind == GrantRecord::Kind::kTensors) {
        if (!tensor.deleted && tensor.incarnation == granted.mark) unanswered[session->id].created.push_back(slot);
      } else {
        const auto lease = GrantedLease::unpack(granted.mark);
        const bool undone = shm::ungrant(member->table.word(slot), lease.mode, lease.turn);
        // Its content was given up with the record, which comes before the word.
        const bool its = !session->is_share() || tensor.holder == member->id;  // and not another one's, as before
        const bool recorded = its && index(session->at(slot).published) == grant.value;
        if ((undone || recorded) && lease.mode == shm::Mode::kOverwrite && lease.fresh)
          unanswered[session->id].torn.push_back(slot);
      }
    }
  });
  return unanswered;
}

// The words and the records of one session are brought together again; then nothing of it is under way, but what a
// former daemon's reads may land in.
// (Slots from there on were never used: whoever gets one sets its word.)
void Restorer::settle(Session& session, const Unanswered& unanswered) {
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (tensor.live())
      settle_word(session, Slot{at});
    else
      words_.show_free(session, Slot{at}, tensor.incarnation);
  }
  for (const Slot slot : unanswered.torn) tensors_.tear(session, slot);
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !tensor.idle()) continue;
    if (tensor.sliding == Level::kDevice && tiers_.is_gone(session, tensor)) {
      copies_.lose_if_gone(session, Slot{at});
      transfers_.slid(session, Slot{at}, {});  // only the books change
    } else if (tensor.sliding == Level::kDevice && tiers_.is_gone_at(session, tensor, tensor.slide().offset)) {
      transfers_.slid(session, Slot{at},
                      fail(ErrorCode::kUnavailable, tiers_[tensor.device].loss));  // it stays where it is
    } else if (tensor.sliding != Level::kNone) {
      transfers_.slide_on(session, Slot{at});
      transfers_.give_up_gone(session, Slot{at});  // its copy in a device, while that in memory slides
    } else if (!tensor.deleted) {
      transfers_.rest(session, Slot{at});
    }
  }
  for (const Slot slot : unanswered.created)
    if (session.at(slot).live() && !session.at(slot).deleted) tensors_.delete_tensor(session, slot);
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !tensor.deleted || std::ranges::find(session.leaving, Slot{at}) != session.leaving.end())
      continue;
    if (!tensors_.try_finish_delete(session, Slot{at})) {
      words_.want(session, Slot{at});
      session.leaving.push_back(Slot{at});
    }
  }
}

// Lease counts and dirty are true in the word, everything else in the record. A word that is neither is a scribble of
// its own session's: the copy that was published stands, with nobody's lease.
void Restorer::settle_word(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.holder != SessionId{} && session.find_member(tensor.holder) == nullptr) {  // it did not survive
    tensor.valid = bit(tensor.published);
    tensor.published = Level::kNone;
    tensor.holder = SessionId{};
    tensor.torn = tensor.forget = true;
  }
  if (tensor.holder != SessionId{} && was_shared(*session.find_member(tensor.holder), slot, tensor)) {
    tensor.valid = bit(tensor.published);  // what it wrote until then was in the word
    tensor.holder = SessionId{};
  }
  if (session.is_share() && tensor.holder == SessionId{}) return settle_shared(session, slot);
  Member& member = tensor.holder == SessionId{} ? session.members.front() : *session.find_member(tensor.holder);
  const shm::Word word = member.table.load(slot);
  if (word.incarnation == tensor.incarnation && word.torn) tensor.torn = true;
  if (tensor.published == Level::kNone) return words_.unpublish(session, slot);
  for (Member& other : session.members)
    if (!Session::shows(other, tensor)) words_.show_nothing(other, slot, tensor);
  const Level level = tensor.published;
  const bool known = word.incarnation == tensor.incarnation &&
                     (word.state == shm::State::kResident || word.state == shm::State::kClaimed);
  if (!known || (word.dirty && !planted(Plant::kRestartForgetsDirty))) tensor.valid = bit(level);
  const bool leased = known && word.state == shm::State::kResident && member.maps_segments;
  if (leased) {
    if (tensor.torn) shm::tear(member.table.word(slot), tensor.incarnation);
    shm::want(member.table.word(slot), false);
    shm::lend(member.table.word(slot), tiers_.is_shown_where_gone(session, tensor));
    return;
  }
  // Of a session over gRPC, a lease ended with the call that held it.
  const bool torn = known && !member.maps_segments && word.writers != 0;
  shm::publish(
      member.table.word(slot),
      {.state = shm::State::kClaimed, .turn = word.turn, .torn = tensor.torn, .incarnation = tensor.incarnation});
  tensor.published = Level::kNone;
  tensor.holder = SessionId{};
  tensor.claimed = true;
  if (torn) {
    tensor.torn = true;
    tensor.forget = true;
  }
}

// The former daemon made it everybody's to read, and did not come to record that.
bool Restorer::was_shared(const Member& holder, Slot slot, const Tensor& tensor) {
  const shm::Word word = holder.table.load(slot);
  return word.incarnation == tensor.incarnation && word.state == shm::State::kShared;
}

// What everybody may read is as it was recorded; words that the former daemon did not come to, or had taken, are
// brought in line.
void Restorer::settle_shared(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.published == Level::kNone) return words_.unpublish(session, slot);
  const Placement at = tiers_.placement(tensor, tensor.published);
  for (Member& member : session.members) {
    const shm::Word was = member.table.load(slot);
    const bool known = was.incarnation == tensor.incarnation && was.state == shm::State::kShared;
    if (known && member.maps_segments) {  // in use meanwhile
      shm::want(member.table.word(slot), false);
      shm::lend(member.table.word(slot), tiers_.is_shown_where_gone(session, tensor));
      continue;
    }
    member.table.publish(slot, words_.shown_word(session, tensor, was.turn), at.place, at.offset, tensor.bytes);
  }
}

}  // namespace terrace::engine
