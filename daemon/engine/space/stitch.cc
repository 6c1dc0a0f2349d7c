// SPDX-License-Identifier: Apache-2.0
// Where free room is cut up by copies that are leased, free pages from wherever they lie are shown once more as
// one run of addresses. Nothing moves, and no memory is held back for it; so a session can lease what its guarantee
// still has, whatever it leased before. A seam serves one copy: it goes when the copy goes.
#include "engine/space/rooms.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/values/planted.h"

namespace terrace::engine {

bool Rooms::can_stitch(TierId tier) const { return tiers_[tier].options.stitches && !planted(Plant::kNeverStitched); }

// Pages for each of these sizes that finds no room side by side once the larger ones have theirs. Empty: the free bytes
// do not suffice. What is returned is taken; the rest is as it was.
std::vector<std::vector<tier::Extent>> Rooms::pages_apart(Place& place, const Demand& demand,
                                                          std::vector<std::uint64_t> sizes) {
  std::ranges::sort(sizes, std::greater());
  std::vector<tier::Extent> placed;
  std::vector<std::uint64_t> unplaced;
  for (const std::uint64_t size : sizes)
    if (const auto offset = place.allocate(size, demand.id))
      placed.push_back({*offset, size});
    else
      unplaced.push_back(size);
  std::vector<std::vector<tier::Extent>> found;
  for (const std::uint64_t size : unplaced) {
    if (place.space.free_bytes() < size) break;
    auto& pages = found.emplace_back();
    for (std::uint64_t left = size; left > 0; left -= pages.back().bytes)
      pages.push_back(*place.space.allocate(std::min(left, place.space.largest_free_bytes())));
  }
  for (const tier::Extent& extent : placed) place.give_back(extent);
  return found;
}

// Begins seams for what of these sizes finds no room side by side. None: seams do not help here.
std::optional<Room> Rooms::stitch(Course& session, Demand& demand, std::vector<std::uint64_t> sizes, Error& refusal) {
  const TierId tier = demand.tier;
  Place& place = *session.places[tier];
  if (!can_stitch(tier)) return std::nullopt;
  if (demand.is(Demand::Kind::kPrefetch) || demand.is(Demand::Kind::kCreate)) return std::nullopt;
  if (demand.seams_coming > 0) return Room::kWait;
  if (demand.stitch_error) {
    refusal = *demand.stitch_error;
    return Room::kRefused;
  }
  auto found = pages_apart(place, demand, std::move(sizes));
  if (found.empty()) return std::nullopt;
  std::size_t pieces = 0;
  for (const auto& pages : found) pieces += pages.size();
  if (session.seam_records.free() < pieces) {
    for (const auto& pages : found)
      for (const tier::Extent& page : pages) place.space.free(page);
    if (give_up_seams(session, tier)) return place.leaving_bytes > 0 ? Room::kWait : Room::kReady;
    refusal = budget_.full(
        session, tier,
        fmt::format("the free bytes that are wanted lie in {} pieces; the session's leases have {} already, "
                    "and can have {}",
                    pieces, kSeamPiecesMax - session.seam_records.free(), kSeamPiecesMax));
    return Room::kRefused;
  }
  for (auto& pages : found) {
    copies_.begin_seam(session, tier, std::move(pages), demand.id);
    ++demand.seams_coming;
  }
  return Room::kWait;
}

// Copies in seams that nobody leases go, so that their pieces are to be had. False: there is none.
bool Rooms::give_up_seams(Course& session, TierId tier) {
  const Level level = tiers_[tier].level;
  bool any = false;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Slot slot{at};
    const Tensor& tensor = session.at(slot);
    if (!tensor.live() || !tiers_.at_tier(tensor, tier) || tensor.offset[index(level)] < tier::kSeamsBegin) continue;
    if (!transfers_.may_move(tensor) || tensor.mark == marks_.set || words_.stays(session, slot, level)) continue;
    const Eviction done = departures_.evict_home(session, slot, level, EvictionReason::kDemand,
                                                 {mover::Class::kAwaitedWriteBack, kNever});
    any |= done == Eviction::kDropped || done == Eviction::kStarted;
  }
  return any;
}

bool Rooms::stitched(Course& session, TierId tier, const mover::SegmentDone& done, Demand* wanted) {
  Place& place = *session.places[tier];
  const tier::Extent extent = done.order.extent;
  const auto found = place.seams.find(extent.offset);
  TERRACE_CHECK(found != place.seams.end() && !found->second.ready);
  if (wanted != nullptr) --wanted->seams_coming;
  if (!done.result && wanted != nullptr) wanted->stitch_error = std::make_unique<Error>(done.result.error());
  place.make_ready(extent.offset);
  if (!done.result || wanted == nullptr || place.reaches(extent, place.fence))
    copies_.unstitch(session, tier, extent.offset);
  return wanted == nullptr || wanted->seams_coming == 0;
}

// What was stitched for an demand which has no use for it: it lacks copies of these sizes alone. True: there was
// such a seam.
bool Rooms::unstitch_unfit(Course& session, const Demand& demand, const std::vector<std::uint64_t>& sizes) {
  const std::vector<std::uint64_t> unfit = session.places[demand.tier]->idle_seams([&](const Seam& seam) {
    return seam.made_for == demand.id && std::ranges::find(sizes, seam.bytes) == sizes.end();
  });
  for (const std::uint64_t offset : unfit) copies_.unstitch(session, demand.tier, offset);
  return !unfit.empty();
}

}  // namespace terrace::engine
