// SPDX-License-Identifier: Apache-2.0
#include "engine/residency/holders.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace::engine {

std::uint64_t Holders::leases_of(const Holdings& session, const Member& member) const {
  std::uint64_t leases = 0;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || tensor.published == Level::kNone || !Holdings::shows(member, tensor)) continue;
    const shm::Word word = member.table.load(Slot{at});
    leases += word.readers + (session.is_shared(tensor) ? 0 : word.writers);
  }
  return leases;
}

// Who holds leases in a share waits for nobody else's there: they may be waiting for its.
bool Holders::must_not_wait(Holdings& session, SessionId member_id) const {
  if (!session.is_share()) return false;
  const Member* asks = session.find_member(member_id);
  return asks != nullptr && leases_of(session, *asks) != 0;
}

// Whether somebody else holds a lease on one of these.
bool Holders::others_hold(Holdings& session, SessionId member_id, const std::vector<Slot>& slots) const {
  return std::ranges::any_of(slots, [&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    return std::ranges::any_of(session.members, [&](const Member& member) {
      return member.id != member_id && Holdings::shows(member, tensor) && member.table.load(slot).leased();
    });
  });
}

std::string Holders::holders(const Holdings& session, const std::vector<Handle>& handles) const {
  constexpr std::size_t kNamedMax = 4;
  std::string text;
  for (std::size_t i = 0; i < handles.size() && i < kNamedMax; ++i) {
    const shm::Word held = session.word(handles[i].slot);
    text += fmt::format("{}'{}' ({} readers, {} writers)", i == 0 ? "" : ", ", records_.name(session, handles[i].slot),
                        held.readers, held.writers);
  }
  if (handles.size() > kNamedMax) text += fmt::format(" and {} more", handles.size() - kNamedMax);
  return text;
}

}  // namespace terrace::engine
