// SPDX-License-Identifier: Apache-2.0
#include "engine/catalog/damage.h"

#include <fmt/format.h>

#include "base/bytes.h"
#include "shm/word.h"
#include "terrace/dtype.h"

namespace terrace::engine {
namespace {

constexpr std::uint8_t kLevelBits = (1u << kLevels) - 1;
std::string damage_of(const TensorFacts& facts, std::uint64_t capacity_bytes) {
  if (facts.name_bytes == 0 || facts.name_bytes > kNameBytesMax)
    return fmt::format("its name has {} bytes", facts.name_bytes);
  if (facts.bytes == 0 || facts.bytes > capacity_bytes)
    return fmt::format("its size is {} bytes, and its home's tier has {}", facts.bytes, capacity_bytes);
  if (element_bytes(static_cast<DType>(facts.dtype)) == 0) return fmt::format("there is no dtype {}", facts.dtype);
  if (facts.rank > kRankMax || (facts.dimension_count != facts.rank && facts.dimension_count != 2 * facts.rank))
    return fmt::format("{} numbers do not make a shape of {} dimensions", facts.dimension_count, facts.rank);
  return {};
}

// A level that trainers lease at, and at which the tensor has a copy.
bool is_mapped_copy(const TensorState& state, std::uint8_t level) {
  return level < index(Level::kBlock) && (state.extents & bit(static_cast<Level>(level))) != 0;
}

std::string damage_of_copies(const TensorState& state) {
  constexpr auto kNowhere = static_cast<std::uint8_t>(Level::kNone);
  const auto has = [&](std::uint8_t flag) { return (state.flags & flag) != 0; };
  const auto valid = static_cast<std::uint8_t>(state.valid & state.extents);
  if (((state.extents | state.valid) & ~kLevelBits) != 0) return "it has copies in tiers that there are not";
  if (state.published != kNowhere) {
    if (!is_mapped_copy(state, state.published)) return "a copy is published that there is not";
    if (!has(kWritten) || (valid & bit(static_cast<Level>(state.published))) == 0)
      return "a copy without content is published";
    if (has(kForget)) return "a copy whose content was given up is published";
  }
  if (state.pinned != kNowhere && !is_mapped_copy(state, state.pinned)) return "a copy is pinned that there is not";
  if (has(kWritten) && !has(kLost) && !has(kDeleted) && valid == 0) return "no copy has its content";
  if (has(kLost) && valid != 0) return "its content is lost, and a copy has it";
  return {};
}

std::string damage_of_rarities(const TensorState& state, const TensorRarities& rare, std::uint64_t extent_bytes) {
  if (rare.piece_count > tier::kPiecesMax) return fmt::format("its home is in {} pieces", rare.piece_count);
  if (rare.sliding == static_cast<std::uint8_t>(Level::kNone)) return {};
  if (!is_mapped_copy(state, rare.sliding) || state.published == rare.sliding)
    return "a copy is on its way that there is not, or that is published";
  if (rare.slide_offset >= state.offset[rare.sliding] || rare.slid_bytes >= extent_bytes ||
      rare.slid_bytes % kPageBytes != 0)
    return "a copy is on its way to where none goes";
  return {};
}

}  // namespace

std::string damage_of(const TensorRecord& record, const HomeTier& home) {
  const TensorState& state = record.state;
  if (std::string damage = damage_of(record.facts, home.capacity_bytes); !damage.empty()) return damage;
  if (record.text.size() != record.facts.text_bytes()) return "its name lies outside of the catalog's texts";
  if (state.incarnation > shm::kIncarnationMask) return fmt::format("its incarnation is {}", state.incarnation);
  if ((state.extents & bit(home.level)) == 0) return "it has no home";
  if (std::string damage = damage_of_copies(state); !damage.empty()) return damage;
  return damage_of_rarities(state, record.rarities, align_up(record.facts.bytes, kPageBytes));
}

}  // namespace terrace::engine
