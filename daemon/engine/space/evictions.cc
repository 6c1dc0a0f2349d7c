// SPDX-License-Identifier: Apache-2.0
#include "engine/space/evictions.h"

#include <functional>
#include <iterator>
#include <map>
#include <optional>

namespace terrace::engine {
namespace {

// What would lie side by side in a space if more of it were free.
class FreeRuns {
 public:
  explicit FreeRuns(const tier::ExtentAllocator& space) {
    for (const tier::Extent& free : space.free_within({0, space.capacity_bytes()}))
      ends_.emplace(free.offset, free.end());
  }

  // `extent` is free too: the run that it is then a part of.
  tier::Extent join(tier::Extent extent) {
    std::uint64_t begin = extent.offset;
    std::uint64_t end = extent.end();
    auto next = ends_.lower_bound(begin);
    if (next != ends_.end() && next->first == end) {
      end = next->second;
      next = ends_.erase(next);
    }
    if (next != ends_.begin() && std::prev(next)->second == begin) {
      --next;
      begin = next->first;
      ends_.erase(next);
    }
    ends_.emplace(begin, end);
    return {begin, end - begin};
  }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // by begin
};

}  // namespace

Eviction Evictions::evict(Course& session, Slot slot, Level level, EvictionReason reason, Urgency urgency) {
  if (!departures_.may_go(session, slot, level)) return Eviction::kRefused;
  Level target = tiers_.home_level;
  if (!words_.droppable(session, slot, level) && level == Level::kDevice && tiers_.home_level == Level::kBlock)
    if (lower_extent(session, slot, urgency, target) == Eviction::kDeferred) return Eviction::kDeferred;
  return departures_.go(session, slot, level, target, reason, urgency);
}

// Where a dirty device copy goes: into memory if it has an extent there, or can get one without waiting for leases,
// else straight home. kDeferred: memory is on its way.
Eviction Evictions::lower_extent(Course& session, Slot slot, Urgency urgency, Level& target) {
  Tensor& tensor = session.at(slot);
  if (tiers_.memory == kNoTier) return Eviction::kStarted;
  const std::uint64_t bytes = tensor.extent_bytes();
  std::uint64_t offset = 0;
  if (!tensor.has(Level::kMemory)) {
    Place& memory = *session.places[tiers_.memory];
    if (memory.space.largest_free_bytes() < bytes && (memory.adding_bytes > 0 || budget_.grow(session, tiers_.memory)))
      return Eviction::kDeferred;
    if (!allocate_by_dropping(session, tiers_.memory, bytes, offset)) {
      const std::uint64_t coming = memory.space.free_bytes() + memory.leaving_bytes;
      if (memory.leaving_bytes > 0 && coming >= bytes) {
        windows_.raise_leaving(session, tiers_.memory, memory.leaving_bytes, urgency);
        return Eviction::kDeferred;
      }
      // Memory cannot be written back just now: the home itself may do better, and if not, whoever waits learns of it.
      if (memory.write_back_error) return Eviction::kStarted;
      const Eviction made = make_room_below(session, slot, coming, urgency);
      if (made != Eviction::kDropped) return made;
      if (!allocate_by_dropping(session, tiers_.memory, bytes, offset)) return Eviction::kStarted;
    }
    copies_.add_copy(session, slot, tiers_.memory, offset);
  }
  target = Level::kMemory;
  return Eviction::kStarted;
}

// Room in memory for a device's copy, of which `coming` bytes are free: by the policy's order; or, where there are
// enough but they lie apart, what stands between them moves, or goes, if it is used after the copy. kDropped: there is
// more of it. kStarted: there is none, and the copy goes straight home.
Eviction Evictions::make_room_below(Course& session, Slot slot, std::uint64_t coming, Urgency urgency) {
  const Tensor& tensor = session.at(slot);
  const std::uint64_t bytes = tensor.extent_bytes();
  if (coming < bytes) {
    const Survey found = windows_.survey(session, tiers_.memory, {.enough_bytes = bytes - coming});
    if (found.victim_bytes < bytes - coming) return Eviction::kStarted;
    bool started = false;
    for (const Slot victim : found.victims)
      started |= departures_.evict_home(session, victim, Level::kMemory, EvictionReason::kDemand, urgency) ==
                 Eviction::kStarted;
    return started ? Eviction::kDeferred : Eviction::kDropped;
  }
  if (windows_.join_free(session, tiers_.memory, bytes)) return Eviction::kDeferred;
  const std::int64_t next_ns = tiers_.place_of(session, tensor, Level::kDevice).policy->expected(slot).next_ns;
  if (!session.foreseen.plan || next_ns == kUnforeseen) return Eviction::kStarted;
  if (!windows_.clear_window(session, tiers_.memory, bytes, {.used_after_ns = next_ns})) return Eviction::kStarted;
  return session.places[tiers_.memory]->leaving_bytes > 0 ? Eviction::kDeferred : Eviction::kDropped;
}

// An extent, for the price of clean copies at most; none are given up in vain, since free bytes that lie apart are
// none. Nor is one that was brought by a plan which still wants it: what is not wanted for longer may be dirty.
bool Evictions::allocate_by_dropping(Course& session, TierId tier, std::uint64_t bytes, std::uint64_t& offset) {
  constexpr std::size_t kLooksMax = 1024;
  Place& place = *session.places[tier];
  const Level level = tiers_[tier].level;
  std::vector<Slot> clean;
  std::size_t looks = 0;
  std::optional<tier::Extent> enough;
  const auto allocated = [&] {
    const auto extent = place.space.allocate(bytes);
    if (extent) offset = extent->offset;
    return extent.has_value();
  };
  TERRACE_CHECK(level != tiers_.home_level);  // homes are there for good
  if (allocated()) return true;
  std::optional<FreeRuns> runs;
  const auto joined = [&](tier::Extent extent) {
    if (clean.size() == 1 && extent.bytes >= bytes) return extent;  // as where tensors are of one size
    if (!runs) runs.emplace(place.space);
    return runs->join(extent);
  };
  const auto is_wanted = [&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    return tensor.prefetched && tensor.published == level && place.policy->expected(slot).next_ns != kUnforeseen;
  };
  const auto look = [&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    const bool free = tensor.idle() && tensor.admission == 0 && tensor.pinned != level && tensor.mark != marks_.set &&
                      !(tensor.published == level && (tensor.hinted || words_.leased(session, slot)));
    const bool in_seam = tensor.offset[index(level)] >= tier::kSeamsBegin;  // its pages lie apart
    if (free && !in_seam && words_.droppable(session, slot, level) && !is_wanted(slot)) {
      clean.push_back(slot);
      const tier::Extent run = joined(tensor.extent(level));
      if (run.bytes >= bytes) enough = run;
    }
    return !enough && ++looks < kLooksMax;
  };
  place.policy->offer_victims(std::ref(look));
  if (!enough) return false;
  for (const Slot slot : clean) {
    if (!enough->contains(session.at(slot).offset[index(level)])) continue;
    if (!words_.droppable(session, slot, level)) continue;  // a client wrote meanwhile
    departures_.evict_home(session, slot, level, EvictionReason::kDemand, {mover::Class::kAwaitedWriteBack, kNever});
  }
  return allocated();
}

}  // namespace terrace::engine
