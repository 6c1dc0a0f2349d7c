// SPDX-License-Identifier: Apache-2.0
#include "engine/tensors.h"

#include <algorithm>

#include "engine/catalog/facts.h"

namespace terrace::engine {

// The name is free at once, the bytes when nothing uses them any more.
void Tensors::delete_tensor(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  session.names.erase(slot, records_.names_of(session));
  --session.tensor_count;
  session.tensor_bytes -= tensor.bytes;
  tensor.deleted = true;
  ++session.lives;
  tensor.pinned = Level::kNone;
  tensor.pinner = SessionId{};
  steps_.observe_forgotten(session, slot);
  for (const auto& place : session.places)
    if (place != nullptr) place->policy->expect(slot, {});  // the slot's next tensor is another one
  records_.touch(session, slot);
  if (!try_finish_delete(session, slot)) {
    words_.want(session, slot);
    session.leaving.push_back(slot);
  }
}

void Tensors::finish_leaving(Session& session) {
  if (session.leaving.empty()) return;
  std::erase_if(session.leaving, [&](Slot slot) { return try_finish_delete(session, slot); });
}

bool Tensors::try_finish_delete(Session& session, Slot slot) {
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

// An overwrite was given up: what is there is neither the old content nor the new, whoever else still leases it.
void Tensors::tear(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.deleted) return;
  if (tensor.published != Level::kNone && session.is_shared(tensor)) return;  // nobody overwrites it
  Admission* bringing = tensor.admission == 0 ? nullptr : queues_.find_admission(session, tensor.admission);
  tensor.torn = true;
  records_.touch(session, slot);
  if (tensor.published != Level::kNone)
    for (Member& member : session.members)
      if (Session::shows(member, tensor)) shm::tear(member.table.word(slot), tensor.incarnation);
  transfers_.forget(session, slot);
  if (bringing == nullptr) return;
  const auto at = std::ranges::find(bringing->slots, slot) - bringing->slots.begin();
  const shm::Mode mode = bringing->modes[static_cast<std::size_t>(at)];
  if (checks_.reads_content(*bringing, mode))
    grants_.fail_admission(session, *bringing, checks_.check_content(session, *bringing, slot, mode).error());
}

TensorInfo Tensors::describe(const Session& session, Slot slot) const {
  const Tensor& tensor = session.at(slot);
  TensorInfo info;
  info.handle = {slot, tensor.incarnation};
  info.spec = spec_of(records_.recorded(session, slot));
  info.pinned = tensor.pinned != Level::kNone;
  const shm::Word held = session.word(slot);
  if (tensor.published != Level::kNone) {
    info.readers = held.readers;
    info.writers = held.writers;
  }
  const Level level = tensor.published != Level::kNone ? tensor.published : fastest_valid(tensor);
  if (!tensor.written || level == Level::kNone) {
    info.placement = {shm::kPlaceNowhere, 0, tensor.bytes};
    return info;
  }
  info.placement = tiers_.placement(tensor, level);
  info.dirty = !tensor.is_valid(tiers_.home_level) ||
               (held.dirty && tensor.published != Level::kNone && tensor.published != tiers_.home_level);
  return info;
}

}  // namespace terrace::engine
