// SPDX-License-Identifier: Apache-2.0
// A set whose tensors may all be moved: room is reserved, words are taken, and the first transfers begin.
#include "engine/admission/admissions.h"

namespace terrace::engine {

// A copy in memory on the way from block to device is worth having, if its extent costs no wait.
bool Admissions::wants_staging(const Admission& admission, const Tensor& tensor, shm::Mode mode) const {
  return tiers_[admission.tier].level == Level::kDevice && tiers_.memory != kNoTier && tensor.written && !tensor.lost &&
         !tensor.has(Level::kMemory) && tensor.valid == bit(Level::kBlock) && mode != shm::Mode::kOverwrite;
}

// Memory that was never taken yet is worth the wait for a segment.
bool Admissions::staging_grows(Session& session, const Admission& admission, const std::vector<Slot>& slots) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (wants_staging(admission, session.at(slots[i]), admission.modes[i]))
      bytes += session.at(slots[i]).extent_bytes();
  if (bytes == 0) return false;
  const Place& memory = *session.places[tiers_.memory];
  return memory.space.free_bytes() < bytes && (memory.adding_bytes > 0 || budget_.grow(session, tiers_.memory));
}

// Room for every copy that is missing in the target tier, the lower tier's first; then the copies' extents.
Room Admissions::reserve(Session& session, Admission& admission, const std::vector<Slot>& slots, Error& refusal) {
  if (staging_grows(session, admission, slots)) return Room::kWait;
  auto& [missing, sizes, offsets] = missing_;
  missing_.clear();
  for (const Slot slot : slots) {
    if (!tiers_[admission.tier].mapped() || tiers_.at_tier(session.at(slot), admission.tier)) continue;
    missing.push_back(slot);
    sizes.push_back(session.at(slot).extent_bytes());
  }
  if (!sizes.empty()) {
    const Room room = rooms_.make_room(session, admission, sizes, offsets, refusal);
    if (room != Room::kReady) return room;
  }
  const auto claimed = claim_all(session, admission, slots);
  if (!claimed || !*claimed)
    for (std::size_t i = 0; i < offsets.size(); ++i)
      copies_.free_extent(session, admission.tier, {offsets[i], sizes[i]});
  if (!claimed) refusal = claimed.error();
  if (!claimed || !*claimed) return claimed ? Room::kOthers : Room::kRefused;
  for (std::size_t i = 0; i < missing.size(); ++i) copies_.add_copy(session, missing[i], admission.tier, offsets[i]);
  return Room::kReady;
}

// Takes the words of those that are published elsewhere; none if somebody leases one, or tore what is to be read.
// False: it is to wait for whoever does.
Result<bool> Admissions::claim_all(Session& session, Admission& admission, const std::vector<Slot>& slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Tensor& tensor = session.at(slots[i]);
    const shm::Mode mode = admission.modes[i];
    if (tensor.published == Level::kNone || checks_.is_there(session, admission, tensor, mode)) continue;
    const bool mine = words_.claim(session, slots[i]);
    const Result<void> good = mine ? checks_.check_content(session, admission, slots[i], mode)
                                   : checks_.await_others(session, admission, slots[i]);
    if (mine && good) continue;
    for (std::size_t j = 0; j <= i; ++j)
      if (session.at(slots[j]).claimed) words_.publish_best(session, slots[j]);
    if (!good) return std::unexpected(good.error());
    return false;
  }
  return true;
}

void Admissions::assemble(Session& session, Admission& admission, const std::vector<Slot>& slots) {
  grants_.clear_wants(session, admission);
  admission.phase = Admission::Phase::kAssembling;
  admission.block = Admission::Block::kNothing;
  for (const Slot slot : slots) session.at(slot).admission = admission.id;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    std::uint64_t offset = 0;
    const Tensor& tensor = session.at(slots[i]);
    const shm::Mode mode = admission.modes[i];
    if (wants_staging(admission, tensor, mode) &&
        evictions_.allocate_by_dropping(session, tiers_.memory, tensor.extent_bytes(), offset))
      copies_.add_copy(session, slots[i], tiers_.memory, offset);
    if (mode != shm::Mode::kOverwrite && grants_.advance(session, admission, slots[i])) ++admission.pending;
  }
  admission.fetched = admission.pending;
  if (admission.pending == 0) grants_.grant(session, admission);
}

}  // namespace terrace::engine
