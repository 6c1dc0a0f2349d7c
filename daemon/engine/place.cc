// SPDX-License-Identifier: Apache-2.0
#include "engine/place.h"

namespace terrace::engine {

std::uint64_t Place::idle_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [offset, seam] : seams) sum += seam.used ? 0 : seam.bytes;
  return sum;
}

std::uint64_t Place::free_bytes(std::uint64_t admission) const {
  std::uint64_t sum = space.free_bytes();
  for (const auto& [offset, seam] : seams) sum += seam.used || seam.made_for != admission ? 0 : seam.bytes;
  return sum;
}

bool Place::reaches(tier::Extent extent, std::uint64_t offset) const {
  if (extent.offset < tier::kSeamsBegin) return extent.end() > offset;
  return std::ranges::any_of(seams.at(extent.offset).pieces,
                             [offset](const tier::Extent& piece) { return piece.end() > offset; });
}

std::optional<std::uint64_t> Place::allocate(std::uint64_t bytes, std::uint64_t admission) {
  for (auto& [offset, seam] : seams) {
    if (!seam.ready || seam.used || seam.made_for != admission || seam.bytes != bytes) continue;
    seam.used = true;
    return offset;
  }
  const auto extent = space.allocate(bytes);
  return extent ? std::optional(extent->offset) : std::nullopt;
}

void Place::give_back(tier::Extent extent) {
  if (extent.offset < tier::kSeamsBegin) return space.free(extent);
  seams.at(extent.offset).used = false;
}

}  // namespace terrace::engine
