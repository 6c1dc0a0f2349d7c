// SPDX-License-Identifier: Apache-2.0
// What stands in the way of a demand, in the policy's order.
#include "engine/space/windows.h"

#include <algorithm>
#include <functional>

namespace terrace::engine {
// Walks the copies in the tier from the first to give up, until enough of them could be.
Survey Windows::survey(Course& session, TierId tier, const Choice& choice) {
  Survey found;
  const Level level = tiers_[tier].level;
  const Policy& policy = *session.places[tier]->policy;
  constexpr std::uint32_t kLooksMax = 1024;  // where many copies would cost a transfer
  std::uint32_t looks = 0;
  const auto look = [&](Slot slot) {
    if (choice.at_once && ++looks > kLooksMax) return false;
    const Tensor& tensor = session.at(slot);
    const std::uint64_t bytes = tensor.extent_bytes() + slide_bytes(tensor, level);
    const bool here = tensor.published == level;
    if (tensor.pinned == level) {
      found.pinned_bytes += bytes;
    } else if (here && words_.leased(session, slot)) {
      if (tensor.mark == marks_.set && level != tiers_.home_level) return true;
      found.leased.push_back(slot);
      found.leased_bytes += bytes;
    } else if (tensor.mark == marks_.set) {
      if (!transfers_.may_move(tensor)) found.busy_bytes += bytes;  // once it is clean it can be moved
      return true;
    } else if (tensor.activity == Activity::kEvicting && tensor.leaving == level) {
      return true;  // counted as leaving
    } else if (!transfers_.may_move(tensor)) {
      found.busy_bytes += bytes;
    } else if (!links_.may_write_home() && level == Level::kMemory && !words_.droppable(session, slot, level)) {
      found.busy_bytes += bytes;  // it cannot be written down yet
    } else if (level != tiers_.home_level && !(choice.spare_hinted && here && tensor.hinted)) {
      if (choice.at_once && !words_.droppable(session, slot, level)) return true;
      if (policy.expected(slot).next_ns < choice.used_after_ns) return true;
      found.victims.push_back(slot);
      found.victim_bytes += bytes;
    }
    return found.victim_bytes < choice.enough_bytes;
  };
  policy.offer_victims(std::ref(look));
  return found;
}

// What leaves may have been begun for somebody less urgent. So many bytes of it, in the policy's order.
void Windows::raise_leaving(Course& session, TierId tier, std::uint64_t enough_bytes, Urgency urgency) {
  const Place& place = *session.places[tier];
  const std::uint64_t enough = std::min(enough_bytes, place.leaving_bytes);
  std::uint64_t leaving = 0;
  if (enough == 0) return;
  place.policy->offer_victims([&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    if (tensor.leaving != tiers_[tier].level || !tiers_.at_tier(tensor, tier)) return true;
    links_.scheduler.raise(TransferId{tensor.transfer}, urgency.urgency, urgency.deadline);
    leaving += tensor.extent_bytes();
    return leaving < enough;
  });
}

}  // namespace terrace::engine
