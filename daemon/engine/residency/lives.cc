// SPDX-License-Identifier: Apache-2.0
#include "engine/residency/lives.h"

#include <algorithm>

#include "engine/catalog/facts.h"

namespace terrace::engine {

Slot Lives::add(Holdings& session, const TensorSpec& spec, std::uint64_t text) {
  Slot slot{};
  if (session.free_slots.empty()) {
    slot = session.tensors.add();
    session.at(slot).incarnation = 1;
  } else {
    slot = session.free_slots.back();
    session.free_slots.pop_back();
  }
  Tensor& tensor = session.at(slot);
  tensor.number = ledger_.next_number++;
  tensor.bytes = spec.bytes;
  TensorFacts facts = facts_of(spec);
  facts.text = text;
  catalog_.put(session.record, index(slot), facts, text_of(spec));
  TERRACE_CHECK(session.names.insert(slot, records_.names_of(session)));
  ++session.tensor_count;
  session.tensor_bytes += spec.bytes;
  records_.touch(session, slot);
  records_.touch(session);
  words_.unpublish(session, slot);
  return slot;
}

void Lives::give_home(Holdings& session, Slot slot, const tier::Pieces& pieces, std::uint64_t first_checksum) {
  Tensor& tensor = session.at(slot);
  tensor.extents = bit(Level::kBlock);
  tensor.offset[index(Level::kBlock)] = pieces[0].offset;
  tensor.set_pieces(pieces);
  tensor.first_checksum = first_checksum;
}

void Lives::written(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  tensor.written = true;
  tensor.lost = tensor.torn = tensor.forget = false;
  records_.touch(session, slot);
}

void Lives::overwritten_at(Holdings& session, Slot slot, Level level) {
  session.at(slot).valid = bit(level);
  records_.touch(session, slot);
}

void Lives::pin(Holdings& session, Slot slot, Level level, SessionId member) {
  Tensor& tensor = session.at(slot);
  tensor.pinned = level;
  if (session.is_share()) tensor.pinner = member;
  records_.touch(session, slot);
}

bool Lives::pinned_by(const Holdings& session, Slot slot, SessionId member) {
  const Tensor& tensor = session.at(slot);
  return tensor.pinned != Level::kNone && (!session.is_share() || tensor.pinner == member);
}

void Lives::unpin(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  tensor.pinned = Level::kNone;
  tensor.pinner = SessionId{};
  records_.touch(session, slot);
  if (tensor.idle() && tensor.admission == 0) transfers_.rest(session, slot);
}

// Not if somebody leases it: a lease taken a moment ago is of somebody who does need it.
void Lives::forget(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.published != Level::kNone && !words_.claim(session, slot)) return;
  tensor.forget = true;
  transfers_.withdraw_clean(session, slot);
  records_.touch(session, slot);
  if (tensor.idle() && tensor.admission == 0) transfers_.rest(session, slot);
}

// An overwrite was given up: what is there is neither the old content nor the new, whoever else still leases it.
bool Lives::tear(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.deleted) return false;
  if (tensor.published != Level::kNone && session.is_shared(tensor)) return false;  // nobody overwrites it
  tensor.torn = true;
  records_.touch(session, slot);
  words_.show_torn(session, slot);
  forget(session, slot);
  return true;
}

void Lives::mend(Holdings& session, Slot slot) {
  session.at(slot).torn = false;
  records_.touch(session, slot);
}

// The name is free at once, the bytes when nothing uses them any more.
void Lives::remove(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  session.names.erase(slot, records_.names_of(session));
  --session.tensor_count;
  session.tensor_bytes -= tensor.bytes;
  tensor.deleted = true;
  ++session.lives;
  tensor.pinned = Level::kNone;
  tensor.pinner = SessionId{};
  for (const auto& place : session.places)
    if (place != nullptr) place->policy->expect(slot, {});  // the slot's next tensor is another one
  records_.touch(session, slot);
  if (!try_finish_delete(session, slot)) {
    words_.want(session, slot);
    session.leaving.push_back(slot);
  }
}

void Lives::finish_leaving(Holdings& session) {
  if (session.leaving.empty()) return;
  std::erase_if(session.leaving, [&](Slot slot) { return try_finish_delete(session, slot); });
}

bool Lives::try_finish_delete(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  transfers_.give_up_clean(session, slot);
  if (!tensor.idle() || tensor.admission != 0) return false;
  if (tensor.published != Level::kNone && !words_.claim(session, slot)) return false;
  if (tensor.prefetched) ++counts_.prefetches.wasted;
  for (const Level level : {Level::kDevice, Level::kMemory})
    if (tensor.has(level)) copies_.drop_copy(session, slot, level);
  if (tensor.has(Level::kBlock)) copies_.free_home(tensor);
  records_.free_text(session, slot);
  const std::uint32_t incarnation = (tensor.incarnation + 1) & shm::kIncarnationMask;
  records_.touch(session, slot);
  words_.show_free(session, slot, incarnation);
  const bool touched = tensor.touched;
  tensor = Tensor{};
  tensor.incarnation = incarnation;
  tensor.touched = touched;
  session.free_slots.push_back(slot);
  ++session.events;
  return true;
}

}  // namespace terrace::engine
