// SPDX-License-Identifier: Apache-2.0
// Copies and their extents: where they lie, how they come and go. The only place that gives extents back.
#include <algorithm>

#include "engine/engine_impl.h"
#include "engine/values/planted.h"

namespace terrace::engine {

std::size_t EngineImpl::tier_index(const Tensor& tensor, Level level) const {
  if (level == Level::kBlock) return block_tier_;
  if (level == Level::kMemory) return memory_tier_;
  return tensor.device;
}

Place& EngineImpl::place_of(Session& session, const Tensor& tensor, Level level) {
  return *session.places[tier_index(tensor, level)];
}

// Whether the copy of the tier's kind, if there is one, lies in this very tier.
bool EngineImpl::at_tier(const Tensor& tensor, std::size_t tier) const {
  const Level level = tiers_[tier].level;
  return tensor.has(level) && tier_index(tensor, level) == tier;
}

Level EngineImpl::fastest_valid(const Tensor& tensor) const {
  for (const Level level : kAllLevels)
    if (tensor.is_valid(level)) return level;
  return Level::kNone;
}

tier::Location EngineImpl::location(const Session& session, const Tensor& tensor, Level level) const {
  TERRACE_CHECK(tensor.has(level));
  tier::Location at{.tier = static_cast<TierId>(tier_index(tensor, level)), .session = session.id, .pieces = {}};
  if (level != Level::kBlock) {
    at.pieces.push(tensor.extent(level));
    return at;
  }
  at.pieces = tensor.home();
  at.first_checksum = tensor.first_checksum;
  return at;
}

Placement EngineImpl::placement(const Tensor& tensor, Level level) const {
  const std::uint32_t place = tiers_[tier_index(tensor, level)].place;
  return {place, level == Level::kBlock ? 0 : tensor.offset[index(level)], tensor.bytes};
}

// Takes over an extent that was allocated in the session's part of a mapped tier.
void EngineImpl::add_copy(Session& session, Slot slot, std::size_t tier, std::uint64_t offset) {
  Tensor& tensor = session.at(slot);
  const Level level = tiers_[tier].level;
  TERRACE_CHECK(level != Level::kBlock && !tensor.has(level) && !tensor.is_valid(level));
  tensor.extents |= bit(level);
  tensor.offset[index(level)] = offset;
  if (level == Level::kDevice) tensor.device = static_cast<std::uint8_t>(tier);
  tiers_[tier].used_bytes += tensor.extent_bytes();
  session.places[tier]->policy->arrived(slot, now_);
  touch(session, slot);
}

// The copy must not be published, nor the last valid one (law 2) unless the tensor goes as a whole.
void EngineImpl::drop_copy(Session& session, Slot slot, Level level) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.has(level) && tensor.published != level && level != Level::kBlock);
  TERRACE_CHECK(!tensor.written || tensor.lost || tensor.deleted || (tensor.valid & ~bit(level)) != 0 ||
                tensor.published != Level::kNone);
  const std::size_t tier = tier_index(tensor, level);
  session.places[tier]->policy->left(slot);
  if (!planted(Plant::kExtentLeaked)) free_extent(session, tier, tensor.extent(level));
  tiers_[tier].used_bytes -= tensor.extent_bytes();
  tensor.extents &= static_cast<std::uint8_t>(~bit(level));
  tensor.valid &= static_cast<std::uint8_t>(~bit(level));
  touch(session, slot);
}

// What lies behind a fence is kept out of circulation, and what nobody can reach for good.
void EngineImpl::free_extent(Session& session, std::size_t tier, tier::Extent extent) {
  Place& place = *session.places[tier];
  if (extent.offset >= tier::kSeamsBegin) return unstitch(session, tier, extent.offset);
  for (const tier::Extent& gone : place.gone) {
    if (extent.end() <= gone.offset || gone.end() <= extent.offset) continue;
    const std::uint64_t begin = std::max(extent.offset, gone.offset);
    const std::uint64_t end = std::min(extent.end(), gone.end());
    place.space.free({begin, end - begin});
    place.space.retire({begin, end - begin});
    if (extent.offset < begin) free_extent(session, tier, {extent.offset, begin - extent.offset});
    if (end < extent.end()) free_extent(session, tier, {end, extent.end() - end});
    return;
  }
  const std::uint64_t open = std::min(extent.end(), std::max(extent.offset, place.fence)) - extent.offset;
  if (open > 0) place.space.free({extent.offset, open});
  if (open == extent.bytes) return;
  place.fenced.push_back({extent.offset + open, extent.bytes - open});
  place.fenced_bytes += extent.bytes - open;
}

void EngineImpl::free_home(Tensor& tensor) {
  const tier::Pieces pieces = tensor.home();
  for (const tier::Extent& piece : pieces.span()) block_space_.free(piece);
  checksum_space_.free({tensor.first_checksum, tier::chunk_count(tensor.bytes)});
  tiers_[block_tier_].used_bytes -= tensor.extent_bytes();
  tensor.extents &= static_cast<std::uint8_t>(~bit(Level::kBlock));
  tensor.valid &= static_cast<std::uint8_t>(~bit(Level::kBlock));
}

// Writing to its home failed: the region is given up for another, from the spare too.
void EngineImpl::retire_home(Tensor& tensor) {
  TERRACE_CHECK(!tensor.is_valid(Level::kBlock));
  const auto fresh = block_space_.allocate_pieces(tensor.bytes);
  if (!fresh) {
    tensor.home_bad = true;
    return;
  }
  const tier::Pieces bad = tensor.home();
  for (const tier::Extent& piece : bad.span()) {
    block_space_.free(piece);
    block_space_.retire(piece);
    retired_.push_back(piece);
  }
  tensor.offset[index(Level::kBlock)] = (*fresh)[0].offset;
  tensor.set_pieces(*fresh);
}

// Nobody moves the tensor any more: settles it into a state in which the fast path may serve it.
void EngineImpl::rest(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.idle() && tensor.admission == 0);
  if (session.life != Session::Life::kOpen) return;
  if (tensor.forget) drop_content(session, slot);
  if (tensor.published != Level::kDevice) lose_if_gone(session, slot);
  if (!tensor.written && tensor.published == Level::kNone) tensor.valid = 0;
  touch(session, slot);
  for (const Level level : {Level::kDevice, Level::kMemory})
    if (tensor.has(level) && !tensor.is_valid(level) && tensor.published != level && level != home_level_ &&
        tensor.pinned != level)
      drop_copy(session, slot, level);
  publish_best(session, slot);
  ++session.events;
  stir(session);
  if (tensor.published == Level::kDevice) give_up_gone(session, slot);  // it may have failed while this was on its way
}

}  // namespace terrace::engine
