// SPDX-License-Identifier: Apache-2.0
#include "engine/residency/lookup.h"

#include <fmt/format.h>

#include "shm/layout.h"

namespace terrace::engine {

Result<Slot> Lookup::find(const Holdings& session, Handle handle) const {
  if (index(handle.slot) >= session.tensors.size())
    return fail(ErrorCode::kNotFound, fmt::format("no tensor in slot {}", index(handle.slot)));
  const Tensor& tensor = session.at(handle.slot);
  if (tensor.incarnation != handle.incarnation)
    return fail(ErrorCode::kAborted, fmt::format("the tensor of slot {}, incarnation {} was deleted: create it again",
                                                 index(handle.slot), handle.incarnation));
  if (tensor.deleted)
    return fail(ErrorCode::kAborted,
                fmt::format("tensor '{}' was deleted: create it again", records_.name(session, handle.slot)));
  if (!tensor.live()) return fail(ErrorCode::kNotFound, fmt::format("no tensor in slot {}", index(handle.slot)));
  return handle.slot;
}

Result<std::vector<Slot>> Lookup::find_all(Holdings& session, const std::vector<Handle>& handles) {
  std::vector<Slot> slots;
  if (const auto found = find_all(session, handles, slots); !found) return std::unexpected(found.error());
  return slots;
}

Result<void> Lookup::find_all(Holdings& session, const std::vector<Handle>& handles, std::vector<Slot>& slots) {
  slots.clear();
  if (handles.size() > shm::kSetMax)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} tensors in a set: at most {}", handles.size(), shm::kSetMax));
  const std::uint64_t mark = marks_.next++;
  slots.reserve(handles.size());
  for (const Handle& handle : handles) {
    const auto slot = find(session, handle);
    if (!slot) return std::unexpected(slot.error());
    Tensor& tensor = session.at(*slot);
    if (tensor.mark == mark)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("tensor '{}' is twice in the set: name it once", records_.name(session, *slot)));
    tensor.mark = mark;
    slots.push_back(*slot);
  }
  return {};
}

}  // namespace terrace::engine
