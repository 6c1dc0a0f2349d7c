// SPDX-License-Identifier: Apache-2.0
// Room side by side: of all runs of the tier's addresses that are long enough, the one whose copies are missed least.
// Free bytes that lie apart are of no use to a large tensor, and to give copies up in the policy's order until enough
// of them happen to be neighbours gives up many.
#include "engine/space/windows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace terrace::engine {
namespace {

// Looking at all of a session's tensors must not take longer than the transfer that it makes room for.
constexpr std::uint64_t kBytesPerTensor = 64;
constexpr std::uint64_t kBytesPerCopy = 512;
constexpr std::uint64_t kMovesMax = 8;      // bytes within a tier, for the time of one over a link
constexpr std::uint64_t kFarMovesMax = 32;  // bytes within a device, for the time of one over a link of the drives
constexpr std::size_t kPartsMax = 4;        // looks at a tier for room in one piece, and in fewer
constexpr double kGivenUp = 0.01;  // of what the copy would be missed otherwise: the plan brings it back, or nobody
constexpr double kOutAndIn = 4;    // likewise, of a copy that must be written back first
constexpr double kSoonestS = 1e-3;

// A copy among its neighbours.
struct Lying {
  std::uint64_t free_before = 0;
  std::uint64_t bytes = 0;
  bool stays = false;
};

// The first copy of the stretch that has `bytes` free, `tail` of them behind the last copy of all, and the fewest bytes
// of copies, none of which stays. None: there is no such stretch, or it has `moved_max` of them.
std::optional<std::size_t> least_moved(const std::vector<Lying>& row, std::uint64_t tail, std::uint64_t bytes,
                                       std::uint64_t moved_max) {
  std::optional<std::size_t> best;
  std::uint64_t least = moved_max;
  std::uint64_t free = 0;
  std::uint64_t moved = 0;
  for (std::size_t first = 0, last = 0; last <= row.size(); ++last) {  // the stretch holds the copies [first, last)
    if (last > 0 && row[last - 1].stays) {
      first = last;
      free = moved = 0;
    } else if (last > 0) {
      moved += row[last - 1].bytes;
    }
    free += last < row.size() ? row[last].free_before : tail;
    for (; first < last && free - row[first].free_before >= bytes; ++first) {
      free -= row[first].free_before;
      moved -= row[first].bytes;
    }
    if (free < bytes || first == last || moved >= least) continue;
    least = moved;
    best = first;
  }
  return best;
}

}  // namespace

// What it costs that the copy goes now; none: it cannot.
std::optional<double> Windows::missed(Course& session, TierId tier, Slot slot, const Choice& choice) const {
  const Tensor& tensor = session.at(slot);
  const Level level = tiers_[tier].level;
  if (!transfers_.may_move(tensor) || tensor.pinned == level || tensor.mark == marks_.set || tensor.deleted)
    return std::nullopt;
  if (tensor.published == level && words_.leased(session, slot)) return std::nullopt;
  const bool clean = words_.droppable(session, slot, level);
  if (choice.at_once && !clean) return std::nullopt;
  // A write-back from above is about to fill it: its going would cost a transfer later.
  if (tensor.activity == Activity::kCleaning && tensor.published < level) return std::nullopt;
  if (choice.spare_hinted && tensor.published == level && tensor.hinted) return std::nullopt;
  const Expectation expected = session.places[tier]->policy->expected(slot);
  if (expected.next_ns < choice.used_after_ns) return std::nullopt;
  const double away_s = static_cast<double>(expected.next_ns - session.foreseen.now_ns()) * 1e-9;
  const double weight = (expected.give_up ? kGivenUp : 1) * (clean ? 1 : kOutAndIn);
  return weight * static_cast<double>(tensor.extent_bytes()) / std::max(away_s, kSoonestS);
}

// What lies in the tier, by address, for whoever looks for room of `bytes` among it; nothing where there is none to be
// had, or the look would take too long for so little.
std::vector<Occupant> Windows::occupants_for(const Course& session, TierId tier, std::uint64_t bytes) const {
  const Level level = tiers_[tier].level;
  const Place& place = *session.places[tier];
  std::vector<Occupant> found;
  if (level == tiers_.home_level || place.fence != kNoFence || bytes < session.tensors.size() * kBytesPerTensor)
    return found;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (tensor.live() && tiers_.at_tier(tensor, tier) && tensor.offset[index(level)] < tier::kSeamsBegin)
      found.push_back({tensor.extent(level), Slot{at}});
  }
  if (bytes < found.size() * kBytesPerCopy) return {};
  if (found.empty()) return found;
  for (const auto& [offset, seam] : place.seams)
    for (const tier::Extent& piece : seam.pieces) found.push_back({piece, std::nullopt});
  std::ranges::sort(found, {}, &Occupant::extent);
  return found;
}

// Free bytes that lie apart come side by side, where that takes less than a transfer: of all stretches of the tier's
// addresses that have enough of them, in the one with the fewest bytes of copies, the first of these moves down. True:
// one is on its way. `far`: less than a transfer of the drives.
bool Windows::join_free(Course& session, TierId tier, std::uint64_t bytes, bool far) {
  const Level level = tiers_[tier].level;
  const Place& place = *session.places[tier];
  const auto occupants = occupants_for(session, tier, bytes);
  if (occupants.empty()) return false;
  std::vector<Lying> row;
  std::uint64_t between = 0;
  std::uint64_t end = 0;
  const auto may_slide = [&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    return transfers_.may_move(tensor) && tensor.pinned != level && !tensor.deleted &&
           !(tensor.published == level && words_.leased(session, slot));
  };
  for (const auto& [extent, copy] : occupants) {
    if (copy && session.at(*copy).activity == Activity::kSliding) return true;
    row.push_back({extent.offset - end, extent.bytes, !copy || !may_slide(*copy)});
    between += extent.offset - end;
    end = extent.end();
  }
  const std::uint64_t tail = place.space.capacity_bytes() - end;
  if (between + tail != place.space.free_bytes()) return false;  // some of it is not to be had
  const auto first = least_moved(row, tail, bytes, (far ? kFarMovesMax : kMovesMax) * bytes);
  if (!first) return false;
  const Slot slot = *occupants[*first].copy;
  if (session.at(slot).published == level && !words_.claim(session, slot)) return false;
  transfers_.start_slide(session, slot, level, occupants[*first].extent.offset - row[*first].free_before);
  return true;
}

// Whether the copy, if it goes from a device, is written to the drives, or another one in memory for it: neither has
// memory its bytes, nor room for them.
bool Windows::takes_drives(const Course& session, TierId tier, Slot slot) const {
  const Tensor& tensor = session.at(slot);
  if (tiers_[tier].level != Level::kDevice || tiers_.memory == kNoTier || tiers_.home_level != Level::kBlock)
    return false;
  if (tensor.has(Level::kMemory) || words_.droppable(session, slot, Level::kDevice)) return false;
  return session.places[tiers_.memory]->used_bytes() + tensor.extent_bytes() >
         budget_.limit_bytes(session, tiers_.memory);
}

// Free bytes come side by side for all of what is wanted; or, where a copy that stays lies between them, for the
// largest of it: the rest may lie elsewhere.
bool Windows::join_parts(Course& session, TierId tier, std::vector<std::uint64_t> sizes) {
  const Place& place = *session.places[tier];
  std::ranges::sort(sizes);
  std::uint64_t bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  for (std::size_t least = 0; least < std::min(sizes.size(), kPartsMax); ++least) {
    if (bytes <= place.space.largest_free_bytes()) return false;
    if (join_free(session, tier, bytes, true)) return true;
    bytes -= sizes[least];
  }
  return false;
}

// Gives up what lies in the best run of `bytes`. False: there is none.
bool Windows::clear_window(Course& session, TierId tier, std::uint64_t bytes, const Choice& choice) {
  const Level level = tiers_[tier].level;
  const Place& place = *session.places[tier];
  const auto occupants = occupants_for(session, tier, bytes);
  if (occupants.empty()) return false;
  const std::uint64_t capacity = place.space.capacity_bytes();
  double cost = 0;
  double least = std::numeric_limits<double>::infinity();
  std::pair<std::size_t, std::size_t> best;
  std::vector<double> costs;
  for (std::size_t first = 0, last = 0; last < occupants.size(); ++last) {  // the run holds those in [first, last]
    const auto& copy = occupants[last].copy;
    const auto missed_by = copy ? missed(session, tier, *copy, choice) : std::nullopt;
    costs.push_back(missed_by.value_or(0));
    if (!missed_by) {
      first = last + 1;
      cost = 0;
      continue;
    }
    cost += *missed_by;
    const std::uint64_t end = last + 1 < occupants.size() ? occupants[last + 1].extent.offset : capacity;
    while (first <= last && end - (first == 0 ? 0 : occupants[first - 1].extent.end()) >= bytes) {
      if (cost < least) {
        least = cost;
        best = {first, last + 1};
      }
      cost -= costs[first++];
    }
    if (first > last) cost = 0;
  }
  if (best.first == best.second) return false;
  for (std::size_t at = best.first; at < best.second; ++at)
    departures_.evict_home(session, *occupants[at].copy, level, EvictionReason::kDemand,
                           {mover::Class::kAwaitedWriteBack, kNever});
  return true;
}

}  // namespace terrace::engine
