// SPDX-License-Identifier: Apache-2.0
// The copies that would be given up next are kept clean, so that their going costs no transfer.
#include "engine/space/cleaning.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <span>

namespace terrace::engine {

Cleaning::Cleaning(const Options& options, Turn& turn, Links& links, Registry& registry, Tiers& tiers, Copies& copies,
                   Transfers& transfers, Budget& budget)
    : options_(options),
      turn_(turn),
      links_(links),
      registry_(registry),
      tiers_(tiers),
      copies_(copies),
      transfers_(transfers),
      budget_(budget) {
  const bool has_where_to = tiers_.memory != kNoTier || links_.write_budget.is_set();
  writes_back_early_ = has_where_to && std::ranges::any_of(options_.tiers, &TierOptions::write_back_early);
  const bool memory_above = tiers_.home_level == Level::kBlock && tiers_.memory != kNoTier;
  const Level above_home = memory_above ? Level::kMemory : Level::kDevice;
  for (const TierId tier : tiers_.ids())
    if (above_home != tiers_.home_level && tiers_[tier].level == above_home &&
        !(writes_back_early_ && tiers_[tier].options.write_back_early))
      kept_clean_.push_back(tier);
}
// The copies that would be given up next are kept clean once the tier is nearly full. Under a plan, which writes down
// itself, those in memory alone that it has go, and while nothing else is written; none where it has them lie evenly
// over the step. (What is in memory that may be lost does not wait for that: write_back.cc.)
void Cleaning::clean(Course& session) {
  if (!links_.may_write_home() || !links_.write_budget.allows_early(turn_.now)) return;
  const foresight::Plan* const plan = session.foreseen.plan.get();
  for (const TierId tier : kept_clean_)
    if (plan == nullptr || (tiers_[tier].level == Level::kMemory && !plan->evenly)) clean_place(session, tier);
}

void Cleaning::clean_place(Course& session, TierId tier) {
  constexpr std::uint32_t kCleaningsMax = 4;  // at a time, per session
  constexpr std::uint32_t kLooksMax = 64;     // copies looked at in one walk
  constexpr std::uint32_t kLooksAnEvent = 4;  // on average, where walks find less than could be begun
  Place& place = *session.places[tier];
  if (place.clean_pause > 0) {
    --place.clean_pause;
    return;
  }
  const Level level = tiers_[tier].level;
  const auto limit = static_cast<double>(budget_.limit_bytes(session, tier));
  const bool planned = session.foreseen.plan != nullptr;
  const double mark = planned ? 0 : limit * tiers_[tier].options.high_mark;
  if (session.cleanings >= kCleaningsMax || static_cast<double>(place.used_bytes()) <= mark) return;
  std::array<Slot, kCleaningsMax> cold{};
  const std::size_t cold_max = kCleaningsMax - session.cleanings;
  std::size_t found = 0;
  auto window = static_cast<std::int64_t>(std::ceil(limit - mark));
  std::uint32_t looks = 0;
  const auto look = [&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    if (planned && !place.policy->expected(slot).give_up) return false;
    if (planned && !session.foreseen.goes_on(slot)) return ++looks < kLooksMax;  // it is stale soon
    window -= static_cast<std::int64_t>(tensor.extent_bytes());
    const bool dirty = tensor.published == level && Words::is_only_one(session, slot, tensor, level);  // as few are
    if (dirty && transfers_.may_clean(session, slot, tensor, level) && !tensor.home_bad &&
        tensor.pinned == Level::kNone)
      cold[found++] = slot;
    return window > 0 && ++looks < kLooksMax && found < cold_max;
  };
  place.policy->offer_victims(std::ref(look));
  if (found < cold_max) place.clean_pause = looks / kLooksAnEvent;
  for (const Slot slot : std::span(cold).first(found)) {
    const mover::Link link = tiers_.link_between(session.at(slot), level, tiers_.home_level);
    if (links_.scheduler.queued(link) + (planned ? links_.scheduler.in_flight(link) : 0) > 0) return;
    transfers_.start_clean(session, slot, level, tiers_.home_level);
  }
}

}  // namespace terrace::engine
