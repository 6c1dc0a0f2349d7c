// SPDX-License-Identifier: Apache-2.0
// Copies and their extents: where they lie, how they come and go. The only place that gives extents back.
#include "engine/residency/copies.h"

#include <algorithm>

#include "engine/values/planted.h"

namespace terrace::engine {

// Takes over an extent that was allocated in the session's part of a mapped tier.
void Copies::add_copy(Holdings& session, Slot slot, TierId tier, std::uint64_t offset) {
  Tensor& tensor = session.at(slot);
  const Level level = tiers_[tier].level;
  TERRACE_CHECK(level != Level::kBlock && !tensor.has(level) && !tensor.is_valid(level));
  tensor.extents |= bit(level);
  tensor.offset[index(level)] = offset;
  if (level == Level::kDevice) tensor.device = static_cast<std::uint8_t>(tier);
  tiers_[tier].used_bytes += tensor.extent_bytes();
  session.places[tier]->policy->arrived(slot, turn_.now);
  records_.touch(session, slot);
}

void Copies::make_valid(Holdings& session, Slot slot, Level level) {
  session.at(slot).valid |= bit(level);
  records_.touch(session, slot);
}

// The copy must not be published, nor the last valid one (law 2) unless the tensor goes as a whole.
void Copies::drop_copy(Holdings& session, Slot slot, Level level) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.has(level) && tensor.published != level && level != Level::kBlock);
  TERRACE_CHECK(!tensor.written || tensor.lost || tensor.deleted || (tensor.valid & ~bit(level)) != 0 ||
                tensor.published != Level::kNone);
  const TierId tier = tiers_.tier_index(tensor, level);
  session.places[tier]->policy->left(slot);
  if (!planted(Plant::kExtentLeaked)) free_extent(session, tier, tensor.extent(level));
  tiers_[tier].used_bytes -= tensor.extent_bytes();
  tensor.extents &= static_cast<std::uint8_t>(~bit(level));
  tensor.valid &= static_cast<std::uint8_t>(~bit(level));
  records_.touch(session, slot);
}

// What lies behind a fence is kept out of circulation, and what nobody can reach for good.
void Copies::free_extent(Holdings& session, TierId tier, tier::Extent extent) {
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

void Copies::free_home(Tensor& tensor) {
  const tier::Pieces pieces = tensor.home();
  for (const tier::Extent& piece : pieces.span()) block_.space.free(piece);
  block_.checksums.free({tensor.first_checksum, tier::chunk_count(tensor.bytes)});
  tiers_[tiers_.block].used_bytes -= tensor.extent_bytes();
  tensor.extents &= static_cast<std::uint8_t>(~bit(Level::kBlock));
  tensor.valid &= static_cast<std::uint8_t>(~bit(Level::kBlock));
}

// Writing to its home failed: the region is given up for another, from the spare too.
void Copies::retire_home(Tensor& tensor) {
  if (!set_home_aside(tensor)) tensor.home_bad = true;
}

bool Copies::set_home_aside(Tensor& tensor) {
  TERRACE_CHECK(!tensor.is_valid(Level::kBlock));
  const auto fresh = block_.space.allocate_pieces(tensor.bytes);
  if (!fresh) return false;
  const tier::Pieces bad = tensor.home();
  for (const tier::Extent& piece : bad.span()) {
    block_.space.free(piece);
    block_.space.retire(piece);
    ledger_.retired.push_back(piece);
  }
  tensor.offset[index(Level::kBlock)] = (*fresh)[0].offset;
  tensor.set_pieces(*fresh);
  return true;
}

void Copies::lose_copy(Tensor& tensor, Level level) {
  tensor.valid &= static_cast<std::uint8_t>(~bit(level));
  if (tensor.valid != 0 || !tensor.written || tensor.lost) return;
  tensor.lost = true;
  tensor.lost_in_device = level == Level::kDevice;
}

// Of a copy that is not published.
void Copies::lose_if_gone(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (!tensor.is_valid(Level::kDevice) || !tiers_.is_gone(session, tensor)) return;
  lose_copy(tensor, Level::kDevice);
  records_.touch(session, slot);
  if (!tensor.lost || tensor.deleted) return;
  ++tiers_[TierId{tensor.device}].lost_tensors;
  turn_.output.losses.push_back({TierId{tensor.device}, session.id, std::string(records_.name(session, slot))});
}

void Copies::count_eviction(Tensor& tensor, Level level, EvictionReason reason) {
  ++tiers_[tiers_.tier_index(tensor, level)].evictions[static_cast<std::size_t>(reason)];
  if (tensor.prefetched) ++counts_.prefetches.wasted;
  tensor.prefetched = tensor.hinted = false;
}

void Copies::drop_content(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.idle() && tensor.published == Level::kNone);
  if (tensor.prefetched) ++counts_.prefetches.wasted;
  tensor.prefetched = tensor.hinted = tensor.forget = tensor.written = tensor.lost = false;
  tensor.valid = 0;
  records_.touch(session, slot);
}

}  // namespace terrace::engine
