// SPDX-License-Identifier: Apache-2.0
#include "engine/tensors.h"

#include <algorithm>

#include "engine/catalog/facts.h"

namespace terrace::engine {

void Tensors::delete_tensor(Session& session, Slot slot) {
  steps_.observe_forgotten(session, slot);
  lives_.remove(session, slot);
}

// What is torn is nothing that anybody who waits for it could read.
void Tensors::tear(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  Admission* bringing = tensor.admission == 0 ? nullptr : queues_.find_admission(session, tensor.admission);
  if (!lives_.tear(session, slot) || bringing == nullptr) return;
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
