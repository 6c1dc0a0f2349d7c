// SPDX-License-Identifier: Apache-2.0
// The engine's side of the lease words: the only place that touches them, settling.cc is a part of it. What a client
// scribbled into its own table is repaired by overwriting it: it harms that session's bytes alone. In a share every
// member's word shows the same copy for reading, or one member's shows it and may be written through.
#include "engine/residency/words.h"

#include <algorithm>

#include "engine/values/planted.h"

namespace terrace::engine {
shm::Word Holdings::shared_word(Slot slot) const {
  const Tensor& tensor = at(slot);
  shm::Word all{.incarnation = tensor.incarnation};
  for (const Member& member : members) {
    if (!shows(member, tensor)) continue;
    shm::Word one = member.table.load(slot);
    if (is_shared(tensor)) {
      one.writers = 0;
      one.dirty = one.torn = false;
    }
    one.readers += all.readers;
    one.writers += all.writers;
    all = one;
  }
  return all;
}

bool Words::leased(const Holdings& session, Slot slot) const {
  const Tensor& tensor = session.at(slot);
  if (tensor.published == Level::kNone) return false;
  return std::ranges::any_of(session.members, [&](const Member& member) {
    return Holdings::shows(member, tensor) && member.table.load(slot).leased();
  });
}

// Takes the published copy for the engine, and settles which copies are valid. False: somebody holds a lease.
bool Words::claim(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.published != Level::kNone && !tensor.claimed);
  const bool shared = session.is_shared(tensor);
  for (Member& member : session.members) {
    if (!Holdings::shows(member, tensor)) continue;
    if (planted(Plant::kOneWordClaimed) && shared && &member != &session.members.front()) continue;
    const shm::Step step = shm::claim(member.table.word(slot), tensor.incarnation);
    if (step.outcome == shm::Outcome::kLeased && !planted(Plant::kMovedWhileLeased)) {
      for (Member& taken : session.members) {
        if (&taken == &member) break;
        shm::unclaim(taken.table.word(slot));
      }
      return false;
    }
    const bool scribbled = step.outcome != shm::Outcome::kDone;
    if (!shared && (scribbled || (step.word.dirty && !planted(Plant::kDirtyCountsAsHome))))
      tensor.valid = bit(tensor.published);
    if (!shared && !scribbled && step.word.torn) tensor.torn = true;
    if (scribbled)
      shm::publish(member.table.word(slot),
                   {.state = shm::State::kClaimed, .turn = step.word.turn, .incarnation = tensor.incarnation});
  }
  tensor.published = Level::kNone;
  tensor.holder = SessionId{};
  tensor.claimed = true;
  records_.touch(session, slot);
  copies_.lose_if_gone(session, slot);
  return true;
}

void Words::publish(Holdings& session, Slot slot, Level level) {
  publish(session, slot, level, SessionId{}, shm::Mode::kRead);
}

// `to`: who gets a lease with it; 0: nobody.
void Words::publish(Holdings& session, Slot slot, Level level, SessionId to, shm::Mode mode) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.published == Level::kNone && tensor.is_valid(level) && level != Level::kBlock);
  const bool writes = to != SessionId{} && mode != shm::Mode::kRead;
  tensor.published = level;
  tensor.claimed = false;
  tensor.holder = writes && session.is_share() ? to : SessionId{};
  records_.touch(session, slot);
  if (!planted(Plant::kPublishedUnrecorded)) records_.commit();  // before anybody can lease it there
  const Placement at = tiers_.placement(tensor, level);
  for (Member& member : session.members) {
    if (!Holdings::shows(member, tensor)) {
      show_nothing(member, slot, tensor);
      continue;
    }
    shm::Word word = shown_word(session, tensor, member.table.load(slot).turn);
    if (member.id == to) {
      word.turn = !word.turn;
      word.dirty = writes;
      ++(writes ? word.writers : word.readers);
    }
    member.table.publish(slot, word, at.place, at.offset, tensor.bytes);
  }
}

// Of the published copy, without a lease.
shm::Word Words::shown_word(const Holdings& session, const Tensor& tensor, bool turn) const {
  return {
      .state = session.is_shared(tensor) ? shm::State::kShared : shm::State::kResident,
      .wanted = is_awaited(session, tensor),
      .lent = tiers_.is_behind_fence(session, tensor, tensor.published) || tiers_.is_shown_where_gone(session, tensor),
      .turn = turn,
      .torn = tensor.torn,
      .incarnation = tensor.incarnation};
}

void Words::show_nothing(Member& member, Slot slot, const Tensor& tensor) {
  const shm::Word word{.state = shm::State::kAbsent,
                       .turn = member.table.load(slot).turn,
                       .torn = tensor.torn,  // a successor may find the word before the record
                       .incarnation = tensor.incarnation};
  member.table.publish(slot, word, shm::kPlaceNowhere, 0, tensor.bytes);
}

void Words::unpublish(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.published == Level::kNone);
  for (Member& member : session.members) show_nothing(member, slot, tensor);
  tensor.claimed = false;
}

void Words::publish_best(Holdings& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (tensor.published != Level::kNone) return;
  const Level level = tensor.written && !tensor.deleted ? fastest_valid(tensor) : Level::kNone;
  if (level == Level::kNone || level == Level::kBlock)
    unpublish(session, slot);
  else
    publish(session, slot, level);
}

// The slot is free, or of a later life than whoever knows it.
void Words::show_free(Holdings& session, Slot slot, std::uint32_t incarnation) {
  for (Member& member : session.members)
    member.table.publish(slot, {.state = shm::State::kFree, .incarnation = incarnation}, 0, 0, 0);
}

// A table that knows nothing yet shows what the others do.
void Words::show_all(const Holdings& session, Member& member) const {
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    const Slot slot{at};
    if (!tensor.live())
      member.table.publish(slot, {.state = shm::State::kFree, .incarnation = tensor.incarnation}, 0, 0, 0);
    else if (tensor.published == Level::kNone || !Holdings::shows(member, tensor))
      show_nothing(member, slot, tensor);
    else {
      const Placement where = tiers_.placement(tensor, tensor.published);
      member.table.publish(slot, shown_word(session, tensor, false), where.place, where.offset, tensor.bytes);
    }
  }
}

// What one member has alone, and does not write just now, is everybody's to read. False: it writes, or said what is to
// be looked at.
bool Words::share(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.holder != SessionId{} && tensor.idle());
  const SessionId former = tensor.holder;
  const shm::Step step = shm::share(session.find_member(former)->table.word(slot), tensor.incarnation);
  if (step.outcome != shm::Outcome::kDone) return false;
  if (step.word.dirty) tensor.valid = bit(tensor.published);
  tensor.holder = SessionId{};
  records_.touch(session, slot);
  records_.commit();  // before anybody else can lease it there
  const Placement at = tiers_.placement(tensor, tensor.published);
  for (Member& member : session.members)
    if (member.id != former)
      member.table.publish(slot, shown_word(session, tensor, member.table.load(slot).turn), at.place, at.offset,
                           tensor.bytes);
  return true;
}

void Words::show_torn(Holdings& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (tensor.published == Level::kNone) return;
  for (Member& member : session.members)
    if (Holdings::shows(member, tensor)) shm::tear(member.table.word(slot), tensor.incarnation);
}

// A trainer says in the word that it gave an overwrite up.
void Words::note_torn(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.torn || tensor.published == Level::kNone || !session.word(slot).torn) return;
  tensor.torn = true;
  records_.touch(session, slot);
}

bool Words::begin_clean(Holdings& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (session.is_shared(tensor)) return true;  // nobody may write
  for (Member& member : session.members) {
    if (!Holdings::shows(member, tensor)) continue;
    if (planted(Plant::kNoWriterCount))
      member.table.word(slot).fetch_and(~shm::Word{.dirty = true}.packed());
    else if (shm::begin_clean(member.table.word(slot), tensor.incarnation).outcome != shm::Outcome::kDone)
      return false;
  }
  return true;
}

// Whether nobody wrote, or began to, since it began.
bool Words::finish_clean(const Holdings& session, Slot slot) const {
  const shm::Word now = session.word(slot);
  return !now.dirty && (now.writers == 0 || planted(Plant::kNoWriterCount));
}

void Words::want(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.wanted++ == 0) show_wanted(session, slot);
}

void Words::unwant(Holdings& session, Handle handle) {
  const Slot slot = handle.slot;
  Tensor& tensor = session.at(slot);
  if (!tensor.live() || tensor.incarnation != handle.incarnation) return;
  TERRACE_CHECK(tensor.wanted > 0);
  if (--tensor.wanted == 0) show_wanted(session, slot);
}

// Whether something is to be done once nobody leases it: the last release rings.
bool Words::is_awaited(const Holdings& session, const Tensor& tensor) const {
  return tensor.wanted != 0 || tensor.awaited_by != 0 || tiers_.is_shown_where_gone(session, tensor);
}

void Words::show_wanted(Holdings& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (tensor.published == Level::kNone) return;
  for (Member& member : session.members)
    if (Holdings::shows(member, tensor)) shm::want(member.table.word(slot), is_awaited(session, tensor));
}

void Words::show_lent(Holdings& session, Slot slot, bool lent) {
  const Tensor& tensor = session.at(slot);
  for (Member& member : session.members)
    if (Holdings::shows(member, tensor)) shm::lend(member.table.word(slot), lent);
}

// Whether the copy can go without a transfer.
bool Words::droppable(const Holdings& session, Slot slot, Level level) const {
  const Tensor& tensor = session.at(slot);
  if (!tensor.written || tensor.lost || !tensor.is_valid(level)) return true;
  if (tensor.published != Level::kNone && tensor.published != level)
    return !tiers_.is_shown_where_gone(session, tensor);
  return !is_only_one(session, slot, tensor, level);
}

// Whether the copy keeps its place as long as its trainer likes.
bool Words::stays(const Holdings& session, Slot slot, Level level) const {
  const Tensor& tensor = session.at(slot);
  return tensor.pinned == level || (tensor.published == level && leased(session, slot));
}

}  // namespace terrace::engine
