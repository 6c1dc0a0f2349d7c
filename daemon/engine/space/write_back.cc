// SPDX-License-Identifier: Apache-2.0
// Early write-back: memory of a device may be lost with the device, and with the daemon. So what is dirty there is
// written down to where it is safe as soon as a link has nothing better to do, and stays where it is. Trainers write
// and release without the daemon, which therefore looks: a hand goes round the tensors of each session.
#include "engine/space/cleaning.h"

#include <algorithm>

namespace terrace::engine {
namespace {

constexpr std::uint32_t kWalkedMax = 1024;   // tensors of a session that are looked at in one go
constexpr std::uint32_t kWriteBacksMax = 4;  // begun and not done, of a session
constexpr int kPeriodsAfterFailure = 50;     // until the next look: what failed once most likely does so again

}  // namespace

// Whether there is something that may have to be written back.
bool Cleaning::awaits_write_backs() const {
  return writes_back_early_ && std::ranges::any_of(tiers_, [](const Tier& tier) {
           return tier.options.write_back_early && tier.used_bytes > 0 && !tier.failed;
         });
}

void Cleaning::look_for_write_backs() {
  if (!writes_back_early_ || turn_.now < next_look_) return;
  next_look_ = turn_.now + options_.write_back_period;
  for (auto& [id, session] : registry_.all) {
    if (session->hand >= session->tensors.size()) session->hand = 0;
    go_round(*session);
  }
}

// Until the end of the round, unless memory for it is on its way: then from there on the next time.
void Cleaning::go_round(Holdings& session) {
  if (session.life != Course::Life::kOpen) return;
  for (std::uint32_t looks = 0; looks < kWalkedMax && session.hand < session.tensors.size(); ++looks, ++session.hand)
    if (session.cleanings >= kWriteBacksMax || !write_back(session, Slot{session.hand})) return;
}

// False: not now, and nothing else either.
bool Cleaning::write_back(Holdings& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (tensor.published != Level::kDevice || !tiers_[TierId{tensor.device}].options.write_back_early) return true;
  if (!transfers_.may_clean(session, slot, tensor, Level::kDevice) || session.word(slot).writers != 0) return true;
  Level target = Level::kNone;
  if (!reserve_below(session, slot, target)) return false;
  if (target != Level::kNone) transfers_.start_clean(session, slot, Level::kDevice, target);
  return true;
}

// Where its bytes outlive the device: in memory if that costs nobody anything, else at home, but on the block tier
// within a budget alone: what is rewritten all the time would wear the drives out. kNone: nowhere now. False: memory is
// on its way.
bool Cleaning::reserve_below(Holdings& session, Slot slot, Level& target) {
  const Tensor& tensor = session.at(slot);
  Level to = tiers_.home_level;
  if (tiers_.memory != kNoTier) {
    const Place& memory = *session.places[tiers_.memory];
    const bool fits = tensor.has(Level::kMemory) || memory.space.largest_free_bytes() >= tensor.extent_bytes();
    if (!fits && (memory.adding_bytes > 0 || budget_.grow(session, tiers_.memory))) return false;
    if (fits) to = Level::kMemory;
  }
  const bool affordable = links_.write_budget.is_set() && links_.write_budget.allows_early(turn_.now);
  if (to == Level::kBlock && (!links_.may_write_home() || !affordable)) return true;
  if (links_.scheduler.has_before(tiers_.link_between(tensor, Level::kDevice, to), mover::Class::kCleaning))
    return true;
  if (!tensor.has(to))
    copies_.add_copy(session, slot, tiers_.memory,
                     session.places[tiers_.memory]->space.allocate(tensor.extent_bytes())->offset);
  target = to;
  return true;
}

// One that ended: then the next ones.
void Cleaning::written_back(Holdings& session, bool good) {
  if (!writes_back_early_) return;
  if (good) return go_round(session);
  next_look_ = std::max(next_look_, turn_.now + kPeriodsAfterFailure * options_.write_back_period);
}

}  // namespace terrace::engine
