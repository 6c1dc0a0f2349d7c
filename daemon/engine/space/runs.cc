// SPDX-License-Identifier: Apache-2.0
// Runs of free addresses: how they join, and how long they could be at best.
#include "engine/space/windows.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace terrace::engine {

// Moves one copy down to the start of the free run before it, so that free runs join. True if one is on its way.
bool Windows::slide_one(Course& session, TierId tier) {
  const Level level = tiers_[tier].level;
  std::vector<std::pair<std::uint64_t, Slot>> copies;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !tiers_.at_tier(tensor, tier)) continue;
    if (tensor.activity == Activity::kSliding) return true;
    copies.emplace_back(tensor.offset[index(level)], Slot{at});
  }
  std::sort(copies.begin(), copies.end());
  std::uint64_t end = 0;
  for (const auto& [offset, slot] : copies) {
    const Tensor& tensor = session.at(slot);
    if (offset >= tier::kSeamsBegin) {  // where it lies side by side again, its pages are free to join others
      Place& place = *session.places[tier];
      const auto room = place.space.allocate(tensor.extent_bytes());
      if (!room) continue;
      place.space.free(*room);
      const bool movable = transfers_.may_move(tensor) && tensor.pinned != level && !tensor.deleted;
      if (!movable || (tensor.published == level && !words_.claim(session, slot))) continue;
      transfers_.start_slide(session, slot, level, room->offset);
      return true;
    }
    const auto gaps = session.places[tier]->space.free_within({end, offset - end});
    end = tensor.extent(level).end();
    const bool movable = transfers_.may_move(tensor) && tensor.pinned != level && !tensor.deleted;
    if (gaps.empty() || gaps.back().end() != offset || !movable) continue;
    if (tensor.published == level && !words_.claim(session, slot)) continue;
    transfers_.start_slide(session, slot, level, gaps.back().offset);
    return true;
  }
  return false;
}

// The runs of addresses that there would be, were all to go that can; the longest first.
std::vector<std::uint64_t> Windows::runs_at_best(const Course& session, TierId tier) const {
  const Place& place = *session.places[tier];
  const Level level = tiers_[tier].level;
  std::vector<tier::Extent> stay{{std::max(place.floor_bytes, place.space.capacity_bytes()), 0}};
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !tiers_.at_tier(tensor, tier) || !words_.stays(session, Slot{at}, level)) continue;
    const auto seam = place.seams.find(tensor.offset[index(level)]);
    if (seam == place.seams.end())
      stay.push_back(tensor.extent(level));
    else
      stay.insert(stay.end(), seam->second.pieces.begin(), seam->second.pieces.end());
  }
  std::ranges::sort(stay);
  std::vector<std::uint64_t> runs{0};
  std::uint64_t end = 0;
  for (const tier::Extent& extent : stay) {
    if (extent.offset > end) runs.push_back(extent.offset - end);
    end = std::max(end, extent.end());
  }
  std::ranges::sort(runs, std::greater());
  return runs;
}

}  // namespace terrace::engine
