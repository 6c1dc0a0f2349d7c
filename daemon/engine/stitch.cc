// SPDX-License-Identifier: Apache-2.0
// Seams: where free room is cut up by copies that are leased, free pages from wherever they lie are shown once more as
// one run of addresses. Nothing moves, and no memory is held back for it; so a session can lease what its guarantee
// still has, whatever it leased before. A seam serves one copy: it goes when the copy goes.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/values/planted.h"

namespace terrace::engine {

bool EngineImpl::can_stitch(std::size_t tier) const {
  return tiers_[tier].options.stitches && !planted(Plant::kNeverStitched);
}

// The runs of addresses that there would be, were all to go that can; the longest first.
std::vector<std::uint64_t> EngineImpl::runs_at_best(const Session& session, std::size_t tier) const {
  const Place& place = *session.places[tier];
  const Level level = tiers_[tier].level;
  std::vector<tier::Extent> stay{{std::max(place.floor_bytes, place.space.capacity_bytes()), 0}};
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !at_tier(tensor, tier) || !stays(session, Slot{at}, level)) continue;
    const auto seam = place.seams.find(tensor.offset[index(level)]);
    if (seam == place.seams.end())
      stay.push_back(tensor.extent(level));
    else
      stay.insert(stay.end(), seam->second.pieces.begin(), seam->second.pieces.end());
  }
  std::ranges::sort(stay);
  std::vector<std::uint64_t> runs{0};
  std::uint64_t end = 0;
  for (const tier::Extent& extent : stay) {
    if (extent.offset > end) runs.push_back(extent.offset - end);
    end = std::max(end, extent.end());
  }
  std::ranges::sort(runs, std::greater());
  return runs;
}

// Whether the copy keeps its place as long as its trainer likes.
bool EngineImpl::stays(const Session& session, Slot slot, Level level) const {
  const Tensor& tensor = session.at(slot);
  return tensor.pinned == level || (tensor.published == level && leased(session, slot));
}

// Pages for each of these sizes that finds no room side by side once the larger ones have theirs. Empty: the free bytes
// do not suffice. What is returned is taken; the rest is as it was.
std::vector<std::vector<tier::Extent>> EngineImpl::pages_apart(Place& place, const Admission& admission,
                                                               std::vector<std::uint64_t> sizes) {
  std::ranges::sort(sizes, std::greater());
  std::vector<tier::Extent> placed;
  std::vector<std::uint64_t> unplaced;
  for (const std::uint64_t size : sizes)
    if (const auto offset = place.allocate(size, admission.id))
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
std::optional<EngineImpl::Room> EngineImpl::stitch(Session& session, Admission& admission,
                                                   std::vector<std::uint64_t> sizes, Error& refusal) {
  const std::size_t tier = admission.tier;
  Place& place = *session.places[tier];
  if (!can_stitch(tier)) return std::nullopt;
  if (admission.is(Admission::Kind::kPrefetch) || admission.is(Admission::Kind::kCreate)) return std::nullopt;
  if (admission.seams_coming > 0) return Room::kWait;
  if (admission.stitch_error) {
    refusal = *admission.stitch_error;
    return Room::kRefused;
  }
  auto found = pages_apart(place, admission, std::move(sizes));
  if (found.empty()) return std::nullopt;
  std::size_t pieces = 0;
  for (const auto& pages : found) pieces += pages.size();
  if (session.seam_records.free() < pieces) {
    for (const auto& pages : found)
      for (const tier::Extent& page : pages) place.space.free(page);
    if (give_up_seams(session, tier)) return place.leaving_bytes > 0 ? Room::kWait : Room::kReady;
    refusal = full(session, tier,
                   fmt::format("the free bytes that are wanted lie in {} pieces; the session's leases have {} already, "
                               "and can have {}",
                               pieces, kSeamPiecesMax - session.seam_records.free(), kSeamPiecesMax));
    return Room::kRefused;
  }
  for (auto& pages : found) begin_seam(session, admission, std::move(pages));
  return Room::kWait;
}

void EngineImpl::begin_seam(Session& session, Admission& admission, std::vector<tier::Extent> pages) {
  Seam seam{.bytes = 0, .pieces = std::move(pages), .records = {}, .made_for = admission.id};
  for (const tier::Extent& piece : seam.pieces) {
    seam.records.push_back(session.seam_records.take());
    catalog_->put(session.record, seam.records.back(),
                  SeamRecord{.session = static_cast<std::uint32_t>(session.id),
                             .tier = static_cast<std::uint32_t>(admission.tier),
                             .seam = next_seam_,
                             .at = seam.bytes,
                             .piece = piece});
    seam.bytes += piece.bytes;
  }
  const tier::Extent extent{std::exchange(next_seam_, next_seam_ + seam.bytes), seam.bytes};
  output_.segment_orders.push_back(
      {mover::SegmentOrder::Kind::kStitch, session.id, static_cast<TierId>(admission.tier), extent, seam.pieces});
  session.places[admission.tier]->add_seam(extent.offset, std::move(seam));
  ++admission.seams_coming;
}

// Copies in seams that nobody leases go, so that their pieces are to be had. False: there is none.
bool EngineImpl::give_up_seams(Session& session, std::size_t tier) {
  const Level level = tiers_[tier].level;
  bool any = false;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Slot slot{at};
    const Tensor& tensor = session.at(slot);
    if (!tensor.live() || !at_tier(tensor, tier) || tensor.offset[index(level)] < tier::kSeamsBegin) continue;
    if (!may_move(tensor) || tensor.mark == set_mark_ || stays(session, slot, level)) continue;
    const Eviction done =
        evict(session, slot, level, EvictionReason::kDemand, {mover::Class::kAwaitedWriteBack, kNever}, true);
    any |= done == Eviction::kDropped || done == Eviction::kStarted;
  }
  return any;
}

// True: the admission that it was made for may go on.
bool EngineImpl::stitched(Session& session, std::size_t tier, const mover::SegmentDone& done) {
  Place& place = *session.places[tier];
  const tier::Extent extent = done.order.extent;
  const auto found = place.seams.find(extent.offset);
  TERRACE_CHECK(found != place.seams.end() && !found->second.ready);
  Admission* const wanted = find_admission(session, found->second.made_for);
  if (wanted != nullptr) --wanted->seams_coming;
  if (!done.result && wanted != nullptr) wanted->stitch_error = std::make_unique<Error>(done.result.error());
  place.make_ready(extent.offset);
  if (!done.result || wanted == nullptr || place.reaches(extent, place.fence)) unstitch(session, tier, extent.offset);
  return wanted == nullptr || wanted->seams_coming == 0;
}

// Of its pages each is free again where it lies.
void EngineImpl::unstitch(Session& session, std::size_t tier, std::uint64_t offset) {
  const Seam seam = session.places[tier]->take_apart(offset);
  forget_records(session, seam);
  for (const tier::Extent& piece : seam.pieces) free_extent(session, tier, piece);
  output_.segment_orders.push_back(
      {mover::SegmentOrder::Kind::kUnstitch, session.id, static_cast<TierId>(tier), {offset, seam.bytes}});
}

void EngineImpl::forget_records(Session& session, const Seam& seam) {
  for (const std::uint32_t record : seam.records) {
    catalog_->put(session.record, record, SeamRecord{});
    session.seam_records.give_back(record);
  }
}

// What was stitched for an admission which has no use for it: it lacks copies of these sizes alone. True: there was
// such a seam.
bool EngineImpl::unstitch_unfit(Session& session, const Admission& admission, const std::vector<std::uint64_t>& sizes) {
  const std::vector<std::uint64_t> unfit = session.places[admission.tier]->idle_seams([&](const Seam& seam) {
    return seam.made_for == admission.id && std::ranges::find(sizes, seam.bytes) == sizes.end();
  });
  for (const std::uint64_t offset : unfit) unstitch(session, admission.tier, offset);
  return !unfit.empty();
}

void EngineImpl::unstitch_idle(Session& session, std::size_t tier) {
  for (const std::uint64_t offset : session.places[tier]->idle_seams([](const Seam&) { return true; }))
    unstitch(session, tier, offset);
}

// As a former daemon left them. Those that no copy uses go once the tensors are known.
Result<void> EngineImpl::restore_seams(const CatalogMemory& catalog, Session& session) {
  const auto bad = [&](const std::string& what) {
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("the catalog that a former daemon left is damaged: a seam of session {} {}",
                            static_cast<std::uint32_t>(session.id), what));
  };
  std::vector<std::pair<SeamRecord, std::uint32_t>> pieces;
  const auto records = catalog.seams(session.record);
  for (std::uint32_t at = 0; at < kSeamPiecesMax; ++at) {
    if (records[at].session != static_cast<std::uint32_t>(session.id)) continue;
    pieces.emplace_back(records[at], at);
    session.seam_records.take_this(at);
  }
  std::ranges::sort(pieces, {},
                    [](const auto& entry) { return std::tuple(entry.first.tier, entry.first.seam, entry.first.at); });
  for (const auto& [piece, record] : pieces) {
    if (piece.tier >= tiers_.size() || session.places[piece.tier] == nullptr)
      return bad(fmt::format("lies in tier {}, which is none that trainers map", piece.tier));
    Place& place = *session.places[piece.tier];
    if (piece.seam < tier::kSeamsBegin || piece.seam % kPageBytes != 0 || piece.seam >= next_seam_)
      return bad(fmt::format("has number {}", piece.seam));
    if (!place.space.is_free(piece.piece)) return bad("lies in another's memory, or outside its tier");
    Seam& seam = place.seams[piece.seam];
    if (piece.at == 0) seam.ready = true;
    if (seam.bytes != piece.at) return bad("lacks a piece");
    place.space.take(piece.piece);
    seam.bytes += piece.piece.bytes;
    if (seam.bytes > next_seam_ - piece.seam) return bad("is longer than there are numbers");
    seam.pieces.push_back(piece.piece);
    seam.records.push_back(record);
    place.idle_bytes += piece.piece.bytes;
  }
  return {};
}

// Its pages are taken from the space already. False: there is no such seam, or another copy uses it.
bool EngineImpl::restore_in_seam(Place& place, tier::Extent extent) {
  const auto found = place.seams.find(extent.offset);
  if (found == place.seams.end() || found->second.used || found->second.bytes != extent.bytes) return false;
  found->second.used = true;
  place.idle_bytes -= extent.bytes;
  return true;
}

}  // namespace terrace::engine
