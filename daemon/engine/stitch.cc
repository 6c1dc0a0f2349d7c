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
#include "engine/planted.h"

namespace terrace::engine {

// Pages for the first of these sizes that finds no room side by side, once the larger ones have theirs. None: the free
// bytes do not suffice.
std::optional<std::vector<tier::Extent>> EngineImpl::pages_apart(Place& place, const Admission& admission,
                                                                 std::vector<std::uint64_t> sizes) {
  std::ranges::sort(sizes, std::greater());
  std::vector<tier::Extent> placed;
  std::vector<tier::Extent> pages;
  for (const std::uint64_t size : sizes) {
    if (const auto offset = place.allocate(size, admission.id)) {
      placed.push_back({*offset, size});
      continue;
    }
    if (place.space.free_bytes() < size) break;
    for (std::uint64_t left = size; left > 0; left -= pages.back().bytes)
      pages.push_back(*place.space.allocate(std::min(left, place.space.largest_free_bytes())));
    break;
  }
  for (const tier::Extent& extent : placed) place.give_back(extent);
  return pages.empty() ? std::nullopt : std::optional(std::move(pages));
}

// Begins a seam for one of the sizes. None: seams do not help here.
std::optional<EngineImpl::Room> EngineImpl::stitch(Session& session, const Admission& admission,
                                                   std::vector<std::uint64_t> sizes, Error& refusal) {
  const std::size_t tier = admission.tier;
  Place& place = *session.places[tier];
  if (!tiers_[tier].options.stitches || planted(Plant::kNeverStitched)) return std::nullopt;
  if (admission.is(Admission::Kind::kPrefetch) || admission.is(Admission::Kind::kCreate)) return std::nullopt;
  const auto is_coming = [&](const auto& entry) {
    return entry.second.made_for == admission.id && !entry.second.ready;
  };
  if (std::ranges::any_of(place.seams, is_coming)) return Room::kWait;
  if (admission.stitch_error) {
    refusal = *admission.stitch_error;
    return Room::kRefused;
  }
  auto pages = pages_apart(place, admission, std::move(sizes));
  if (!pages) return std::nullopt;
  Seam seam{.bytes = 0, .pieces = std::move(*pages), .records = {}, .made_for = admission.id};
  for (const tier::Extent& piece : seam.pieces) seam.bytes += piece.bytes;
  const std::uint64_t bytes = seam.bytes;
  if (free_seam_records_.size() < seam.pieces.size()) {
    for (const tier::Extent& piece : seam.pieces) place.space.free(piece);
    refusal = full(session, tier,
                   fmt::format("{} free bytes lie in {} pieces, and all leases together may have {}", bytes,
                               seam.pieces.size(), kSeamPiecesMax));
    return Room::kRefused;
  }
  const std::uint64_t offset = std::exchange(next_seam_, next_seam_ + bytes);
  std::uint64_t at = 0;
  for (const tier::Extent& piece : seam.pieces) {
    seam.records.push_back(free_seam_records_.back());
    free_seam_records_.pop_back();
    catalog_->put(seam.records.back(), SeamRecord{.session = static_cast<std::uint32_t>(session.id),
                                                  .tier = static_cast<std::uint32_t>(tier),
                                                  .seam = offset,
                                                  .at = at,
                                                  .piece = piece});
    at += piece.bytes;
  }
  output_.segment_orders.push_back(
      {mover::SegmentOrder::Kind::kStitch, session.id, static_cast<TierId>(tier), {offset, bytes}, seam.pieces});
  place.seams.emplace(offset, std::move(seam));
  return Room::kWait;
}

void EngineImpl::stitched(Session& session, std::size_t tier, const mover::SegmentDone& done) {
  Place& place = *session.places[tier];
  const auto found = place.seams.find(done.order.extent.offset);
  TERRACE_CHECK(found != place.seams.end() && !found->second.ready);
  found->second.ready = true;
  Admission* const wanted = find_admission(session, found->second.made_for);
  if (!done.result && wanted != nullptr) wanted->stitch_error = std::make_unique<Error>(done.result.error());
  if (!done.result || wanted == nullptr || place.reaches(done.order.extent, place.fence))
    unstitch(session, tier, done.order.extent.offset);
}

// Of its pages each is free again where it lies.
void EngineImpl::unstitch(Session& session, std::size_t tier, std::uint64_t offset) {
  const auto node = session.places[tier]->seams.extract(offset);
  TERRACE_CHECK(!node.empty() && node.mapped().ready);
  forget_records(node.mapped());
  for (const tier::Extent& piece : node.mapped().pieces) free_extent(session, tier, piece);
  output_.segment_orders.push_back(
      {mover::SegmentOrder::Kind::kUnstitch, session.id, static_cast<TierId>(tier), {offset, node.mapped().bytes}});
}

void EngineImpl::forget_records(const Seam& seam) {
  for (const std::uint32_t record : seam.records) {
    catalog_->put(record, SeamRecord{});
    free_seam_records_.push_back(record);
  }
}

// What was stitched for an admission which has no use for it: it lacks copies of these sizes alone. Of all admissions,
// where none is named. True: there was such a seam.
bool EngineImpl::unstitch_idle(Session& session, std::size_t tier, const Admission* admission,
                               const std::vector<std::uint64_t>& sizes) {
  std::vector<std::uint64_t> idle;
  for (const auto& [offset, seam] : session.places[tier]->seams)
    if (seam.ready && !seam.used && (admission == nullptr || admission->id == seam.made_for) &&
        std::ranges::find(sizes, seam.bytes) == sizes.end())
      idle.push_back(offset);
  for (const std::uint64_t offset : idle) unstitch(session, tier, offset);
  return !idle.empty();
}

// As a former daemon left them. Those that no copy uses go once the tensors are known.
Result<void> EngineImpl::restore_seams(const CatalogMemory& catalog, Session& session) {
  const auto bad = [&](const std::string& what) {
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("the catalog that a former daemon left is damaged: a seam of session {} {}",
                            static_cast<std::uint32_t>(session.id), what));
  };
  std::vector<std::pair<SeamRecord, std::uint32_t>> pieces;
  for (std::uint32_t at = 0; at < kSeamPiecesMax; ++at)
    if (catalog.seams()[at].session == static_cast<std::uint32_t>(session.id))
      pieces.emplace_back(catalog.seams()[at], at);
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
    if (seam.bytes != piece.at) return bad("lacks a piece");
    place.space.take(piece.piece);
    seam.bytes += piece.piece.bytes;
    if (seam.bytes > next_seam_ - piece.seam) return bad("is longer than there are numbers");
    seam.pieces.push_back(piece.piece);
    seam.records.push_back(record);
    seam.ready = true;
  }
  return {};
}

// Its pages are taken from the space already. False: there is no such seam, or another copy uses it.
bool EngineImpl::restore_in_seam(Place& place, tier::Extent extent) {
  const auto found = place.seams.find(extent.offset);
  if (found == place.seams.end() || found->second.used || found->second.bytes != extent.bytes) return false;
  found->second.used = true;
  return true;
}

}  // namespace terrace::engine
