// SPDX-License-Identifier: Apache-2.0
#include "engine/residency/place.h"

namespace terrace::engine {

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
  if (const auto idle = idle_.find({admission, bytes}); idle != idle_.end()) {
    const std::uint64_t offset = idle->second;
    idle_.erase(idle);
    seams.at(offset).used = true;
    idle_bytes -= bytes;
    return offset;
  }
  const auto extent = space.allocate(bytes);
  return extent ? std::optional(extent->offset) : std::nullopt;
}

void Place::give_back(tier::Extent extent) {
  if (extent.offset < tier::kSeamsBegin) return space.free(extent);
  Seam& seam = seams.at(extent.offset);
  seam.used = false;
  idle_bytes += seam.bytes;
  make_idle(extent.offset, seam);
}

void Place::make_idle(std::uint64_t offset, Seam& seam) { idle_.emplace(std::pair(seam.made_for, seam.bytes), offset); }

void Place::add_seam(std::uint64_t offset, Seam seam) {
  idle_bytes += seam.bytes;
  seams.emplace(offset, std::move(seam));
}

void Place::make_ready(std::uint64_t offset) {
  Seam& seam = seams.at(offset);
  seam.ready = true;
  make_idle(offset, seam);
}

Seam Place::take_apart(std::uint64_t offset) {
  auto node = seams.extract(offset);
  TERRACE_CHECK(!node.empty() && node.mapped().ready);
  const Seam& seam = node.mapped();
  if (!seam.used) {
    idle_bytes -= seam.bytes;
    const auto [first, last] = idle_.equal_range({seam.made_for, seam.bytes});
    const auto idle = std::find_if(first, last, [offset](const auto& entry) { return entry.second == offset; });
    if (idle != last) idle_.erase(idle);  // one that was restored is in no list
  }
  return std::move(node.mapped());
}

std::vector<std::uint64_t> Place::idle_seams(const std::function<bool(const Seam&)>& of_this_kind) const {
  std::vector<std::uint64_t> found;
  for (const auto& [offset, seam] : seams)
    if (seam.ready && !seam.used && of_this_kind(seam)) found.push_back(offset);
  return found;
}

}  // namespace terrace::engine
