// SPDX-License-Identifier: Apache-2.0
#include "engine/space/departures.h"

namespace terrace::engine {

bool Departures::may_go(const Course& session, Slot slot, Level level) const {
  const Tensor& tensor = session.at(slot);
  TERRACE_CHECK(transfers_.may_move(tensor) && tensor.has(level) && level != tiers_.home_level);
  return tensor.pinned != level && !(tensor.published == level && words_.leased(session, slot));
}

Eviction Departures::evict_home(Course& session, Slot slot, Level level, EvictionReason reason, Urgency urgency) {
  return may_go(session, slot, level) ? go(session, slot, level, tiers_.home_level, reason, urgency)
                                      : Eviction::kRefused;
}

Eviction Departures::go(Course& session, Slot slot, Level level, Level target, EvictionReason reason, Urgency urgency) {
  Tensor& tensor = session.at(slot);
  const auto has_to_wait = [&] {
    return !links_.may_write_home() && target == Level::kBlock && !words_.droppable(session, slot, level);
  };
  if (has_to_wait()) return Eviction::kDeferred;
  if (tensor.published == level && !words_.claim(session, slot)) return Eviction::kRefused;
  if (has_to_wait()) {  // a client wrote a moment ago
    words_.publish_best(session, slot);
    return Eviction::kDeferred;
  }
  const bool was_to_come = transfers_.withdraw_clean(session, slot) && !tensor.is_valid(level);
  if (!was_to_come && reason != EvictionReason::kHint && reason != EvictionReason::kMove)
    steps_.plan_return(session, slot, level);
  if (words_.droppable(session, slot, level)) {
    if (!was_to_come) copies_.count_eviction(tensor, level, reason);
    if (level == Level::kDevice) steps_.pass_below(session, slot);
    copies_.drop_copy(session, slot, level);
    words_.publish_best(session, slot);
    return Eviction::kDropped;
  }
  transfers_.start(session, slot,
                   {.session = session.id,
                    .slot = slot,
                    .activity = Activity::kEvicting,
                    .from = level,
                    .to = target,
                    .reason = reason},
                   urgency);
  return Eviction::kStarted;
}

void Departures::evict_for_hint(Course& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  for (const Level level : {Level::kDevice, Level::kMemory}) {
    if (level == tiers_.home_level || !tensor.has(level) || !transfers_.may_move(tensor)) continue;
    if (tensor.published == Level::kDevice && level == Level::kMemory) continue;  // leased above
    evict_home(session, slot, level, EvictionReason::kHint, {mover::Class::kCleaning, kNever});
  }
}

}  // namespace terrace::engine
