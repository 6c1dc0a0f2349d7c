// SPDX-License-Identifier: Apache-2.0
// Words and records are brought together again: after a restore, and after the end of whoever could write.
#include "engine/residency/words.h"
#include "engine/values/planted.h"

namespace terrace::engine {

// Lease counts and dirty are true in the word, everything else in the record. A word that is neither is a scribble of
// its own session's: the copy that was published stands, with nobody's lease.
void Words::settle(Holdings& session, Slot slot) {
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
  if (tensor.published == Level::kNone) return unpublish(session, slot);
  for (Member& other : session.members)
    if (!Holdings::shows(other, tensor)) show_nothing(other, slot, tensor);
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
bool Words::was_shared(const Member& holder, Slot slot, const Tensor& tensor) {
  const shm::Word word = holder.table.load(slot);
  return word.incarnation == tensor.incarnation && word.state == shm::State::kShared;
}

// What everybody may read is as it was recorded; words that the former daemon did not come to, or had taken, are
// brought in line.
void Words::settle_shared(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.published == Level::kNone) return unpublish(session, slot);
  const Placement at = tiers_.placement(tensor, tensor.published);
  for (Member& member : session.members) {
    const shm::Word was = member.table.load(slot);
    const bool known = was.incarnation == tensor.incarnation && was.state == shm::State::kShared;
    if (known && member.maps_segments) {  // in use meanwhile
      shm::want(member.table.word(slot), false);
      shm::lend(member.table.word(slot), tiers_.is_shown_where_gone(session, tensor));
      continue;
    }
    member.table.publish(slot, shown_word(session, tensor, was.turn), at.place, at.offset, tensor.bytes);
  }
}

// What it was about to write is neither the old content nor the new.
void Words::bereave(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  Member& writer = *session.find_member(tensor.holder);
  const shm::Word word = writer.table.load(slot);
  const bool scribbled = word.incarnation != tensor.incarnation || word.state != shm::State::kResident;
  if (scribbled || word.dirty) tensor.valid = bit(tensor.published);
  if ((scribbled || word.torn || word.writers != 0) && !planted(Plant::kBereavedWhole)) tensor.torn = true;
  tensor.published = Level::kNone;
  tensor.holder = SessionId{};
  tensor.claimed = true;
  records_.touch(session, slot);
}

}  // namespace terrace::engine
