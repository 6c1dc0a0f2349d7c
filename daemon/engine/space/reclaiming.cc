// SPDX-License-Identifier: Apache-2.0
#include "engine/space/reclaiming.h"

#include <algorithm>

namespace terrace::engine {

// Empties what lies behind the fences.
void Reclaiming::reclaim(Course& session) {
  if (!budget_.fenced()) return;
  for (const TierId tier : tiers_.ids()) {
    if (!tiers_[tier].mapped() || session.places[tier]->fence == kNoFence) continue;
    std::erase_if(session.places[tier]->fence_wants, [&](const Handle& handle) {
      if (tiers_.at_tier(session.at(handle.slot), tier)) return false;
      words_.unwant(session, handle);  // it left by another way, as what was lost there does
      ++session.events;
      return true;
    });
    for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
      const Tensor& tensor = session.tensors[at];
      if (!tensor.live() || !tiers_.at_tier(tensor, tier)) continue;
      if (tiers_.is_behind_fence(session, tensor, tiers_[tier].level)) reclaim_copy(session, tier, Slot{at});
    }
    budget_.give_back_segments(session, tier);
  }
}

void Reclaiming::reclaim_copy(Course& session, TierId tier, Slot slot) {
  const Tensor& tensor = session.at(slot);
  const Level level = tiers_[tier].level;
  Place& place = *session.places[tier];
  const Handle handle{slot, tensor.incarnation};
  const auto wanted = std::find(place.fence_wants.begin(), place.fence_wants.end(), handle);
  if (tensor.published == level) words_.show_lent(session, slot, true);
  if (words_.leased(session, slot) && tensor.published == level) {
    if (wanted != place.fence_wants.end()) return;
    place.fence_wants.push_back(handle);
    words_.want(session, slot);
    ++session.events;  // looked at once more, for it may have ended by now
    return wakes_.stir(session);
  }
  if (wanted != place.fence_wants.end()) {  // what can not move after all is not kept from its owner
    place.fence_wants.erase(wanted);
    words_.unwant(session, handle);
    ++session.events;
  }
  if (tensor.leaving == level)
    links_.scheduler.raise(TransferId{tensor.transfer}, mover::Class::kAwaitedWriteBack, kNever);
  else if (transfers_.may_move(tensor) && tensor.pinned != level && !tensor.deleted)
    move_below_fence(session, tier, slot);
}

void Reclaiming::move_below_fence(Course& session, TierId tier, Slot slot) {
  const Tensor& tensor = session.at(slot);
  const Level level = tiers_[tier].level;
  Place& place = *session.places[tier];
  if (level != tiers_.home_level) {
    if (place.write_back_error) return;  // not again and again: at the next event
    evictions_.evict(session, slot, level, EvictionReason::kTakenBack, {mover::Class::kAwaitedWriteBack, kNever});
    return;
  }
  const auto lower = place.space.allocate(tensor.extent_bytes());
  if (!lower) {
    windows_.slide_one(session, tier);
    return;
  }
  place.space.free(*lower);
  if (tensor.published != level || words_.claim(session, slot))
    transfers_.start_slide(session, slot, level, lower->offset);
}

}  // namespace terrace::engine
