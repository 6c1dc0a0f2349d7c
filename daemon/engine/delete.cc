// SPDX-License-Identifier: Apache-2.0
// Tensors and contents that go, and what can be read of those that are there.
#include <fmt/format.h>

#include <algorithm>

#include "engine/catalog/facts.h"
#include "engine/engine_impl.h"

namespace terrace::engine {

void EngineImpl::on(const Request& request, const DeleteTensors& body) {
  const auto session = session_to_write(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  std::vector<Handle> there = body.tensors;
  if (body.again) std::erase_if(there, [&](Handle handle) { return !find(**session, handle); });
  const auto slots = find_all(**session, there);
  if (!slots) return answer(request.id, std::unexpected(slots.error()));
  for (const Slot slot : *slots) delete_tensor(**session, slot);
  ++(*session)->events;
  stir(**session);
  answer(request.id, ReplyBody{Done{}});
}

// The name is free at once, the bytes when nothing uses them any more.
void EngineImpl::delete_tensor(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  session.names.erase(slot, names_of(session));
  --session.tensor_count;
  session.tensor_bytes -= tensor.bytes;
  tensor.deleted = true;
  ++session.lives;
  tensor.pinned = Level::kNone;
  tensor.pinner = SessionId{};
  observe_forgotten(session, slot);
  for (const auto& place : session.places)
    if (place != nullptr) place->policy->expect(slot, {});  // the slot's next tensor is another one
  touch(session, slot);
  if (!try_finish_delete(session, slot)) {
    want(session, slot);
    session.leaving.push_back(slot);
  }
}

void EngineImpl::finish_leaving(Session& session) {
  if (session.leaving.empty()) return;
  std::erase_if(session.leaving, [&](Slot slot) { return try_finish_delete(session, slot); });
}

bool EngineImpl::try_finish_delete(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  give_up_clean(session, slot);
  if (!tensor.idle() || tensor.admission != 0) return false;
  if (tensor.published != Level::kNone && !claim(session, slot)) return false;
  if (tensor.prefetched) ++prefetches_.wasted;
  for (const Level level : {Level::kDevice, Level::kMemory})
    if (tensor.has(level)) drop_copy(session, slot, level);
  if (tensor.has(Level::kBlock)) free_home(tensor);
  free_text(session, slot);
  const std::uint32_t incarnation = (tensor.incarnation + 1) & shm::kIncarnationMask;
  touch(session, slot);
  show_free(session, slot, incarnation);
  const bool touched = tensor.touched;
  tensor = Tensor{};
  tensor.incarnation = incarnation;
  tensor.touched = touched;
  session.free_slots.push_back(slot);
  ++session.events;
  return true;
}

void EngineImpl::on(const Request& request, const DontNeed& body) {
  const auto session = session_to_write(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  const auto slots = find_all(**session, body.tensors);
  if (!slots) return answer(request.id, std::unexpected(slots.error()));
  for (const Slot slot : *slots) {
    const Tensor& tensor = (*session)->at(slot);
    const Admission* bringing = tensor.admission == 0 ? nullptr : find_admission(**session, tensor.admission);
    if (bringing != nullptr && !bringing->is(Admission::Kind::kPrefetch))
      return answer(request.id,
                    fail(ErrorCode::kFailedPrecondition,
                         fmt::format("tensor '{}' is being brought in for another request", name(**session, slot))));
    if (leased(**session, slot))
      return answer(request.id, fail(ErrorCode::kFailedPrecondition,
                                     fmt::format("tensor '{}' is leased: release it first", name(**session, slot))));
  }
  for (const Slot slot : *slots) {
    observe_forgotten(**session, slot);
    forget(**session, slot);
    Tensor& tensor = (*session)->at(slot);
    tensor.torn = false;
    touch(**session, slot);
    if (tensor.published != Level::kNone || tensor.claimed) continue;
    commit();  // before the word says so too
    unpublish(**session, slot);
  }
  ++(*session)->events;
  stir(**session);
  answer(request.id, ReplyBody{Done{}});
}

// Not if somebody leases it: a lease taken a moment ago is of somebody who does need it.
void EngineImpl::forget(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.published != Level::kNone && !claim(session, slot)) return;
  tensor.forget = true;
  withdraw_clean(session, slot);
  touch(session, slot);
  if (tensor.idle() && tensor.admission == 0) rest(session, slot);
}

void EngineImpl::drop_content(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.idle() && tensor.published == Level::kNone);
  if (tensor.prefetched) ++prefetches_.wasted;
  tensor.prefetched = tensor.hinted = tensor.forget = tensor.written = tensor.lost = false;
  tensor.valid = 0;
  touch(session, slot);
}

void EngineImpl::on(const Request& request, const ListTensors& body) {
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  TensorList list;
  std::uint64_t page_bytes = 0;
  for (std::uint32_t at = body.first_slot; at < (*session)->tensors.size(); ++at) {
    const Tensor& tensor = (*session)->tensors[at];
    if (!tensor.live() || tensor.deleted) continue;
    const TensorRecord record = recorded(**session, Slot{at});
    if (!name_of(record).starts_with(body.prefix)) continue;
    if (page_bytes >= body.page_bytes_max) {
      list.next_slot = at;
      break;
    }
    page_bytes += sizeof(TensorInfo) + record.text.size();
    list.tensors.push_back(describe(**session, Slot{at}));
  }
  answer(request.id, ReplyBody{std::move(list)});
}

void EngineImpl::on(const Request& request, const FindTensors& body) {
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  TensorList list;
  for (const std::string& name : body.names) {
    const auto found = (*session)->names.find(name, names_of(**session));
    if (!found)
      return answer(request.id, fail(ErrorCode::kNotFound, fmt::format("there is no tensor '{}': create it first",
                                                                       name.substr(0, kNameBytesMax))));
    list.tensors.push_back(describe(**session, *found));
  }
  answer(request.id, ReplyBody{std::move(list)});
}

TensorInfo EngineImpl::describe(const Session& session, Slot slot) const {
  const Tensor& tensor = session.at(slot);
  TensorInfo info;
  info.handle = {slot, tensor.incarnation};
  info.spec = spec_of(recorded(session, slot));
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
  info.placement = placement(tensor, level);
  info.dirty = !tensor.is_valid(home_level_) ||
               (held.dirty && tensor.published != Level::kNone && tensor.published != home_level_);
  return info;
}

}  // namespace terrace::engine
