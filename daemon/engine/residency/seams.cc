// SPDX-License-Identifier: Apache-2.0
// Seams as the catalog and the mover know them.
#include "engine/residency/copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace terrace::engine {

void Copies::begin_seam(Holdings& session, TierId tier, std::vector<tier::Extent> pages, std::uint64_t made_for) {
  Seam seam{.bytes = 0, .pieces = std::move(pages), .records = {}, .made_for = made_for};
  for (const tier::Extent& piece : seam.pieces) {
    seam.records.push_back(session.seam_records.take());
    catalog_.put(session.record, seam.records.back(),
                 SeamRecord{.session = static_cast<std::uint32_t>(session.id),
                            .tier = static_cast<std::uint32_t>(tier),
                            .seam = ledger_.next_seam,
                            .at = seam.bytes,
                            .piece = piece});
    seam.bytes += piece.bytes;
  }
  const tier::Extent extent{std::exchange(ledger_.next_seam, ledger_.next_seam + seam.bytes), seam.bytes};
  turn_.output.segment_orders.push_back({mover::SegmentOrder::Kind::kStitch, session.id, tier, extent, seam.pieces});
  session.places[tier]->add_seam(extent.offset, std::move(seam));
}

// Of its pages each is free again where it lies.
void Copies::unstitch(Holdings& session, TierId tier, std::uint64_t offset) {
  const Seam seam = session.places[tier]->take_apart(offset);
  forget_records(session, seam);
  for (const tier::Extent& piece : seam.pieces) free_extent(session, tier, piece);
  turn_.output.segment_orders.push_back({mover::SegmentOrder::Kind::kUnstitch, session.id, tier, {offset, seam.bytes}});
}

void Copies::forget_records(Holdings& session, const Seam& seam) {
  for (const std::uint32_t record : seam.records) {
    catalog_.put(session.record, record, SeamRecord{});
    session.seam_records.give_back(record);
  }
}

void Copies::unstitch_idle(Holdings& session, TierId tier) {
  for (const std::uint64_t offset : session.places[tier]->idle_seams([](const Seam&) { return true; }))
    unstitch(session, tier, offset);
}

// As a former daemon left them. Those that no copy uses go once the tensors are known.
Result<void> Copies::restore_seams(const CatalogMemory& catalog, Holdings& session) {
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
    if (piece.tier >= tiers_.size() || session.places[TierId(piece.tier)] == nullptr)
      return bad(fmt::format("lies in tier {}, which is none that trainers map", piece.tier));
    Place& place = *session.places[TierId(piece.tier)];
    if (piece.seam < tier::kSeamsBegin || piece.seam % kPageBytes != 0 || piece.seam >= ledger_.next_seam)
      return bad(fmt::format("has number {}", piece.seam));
    if (!place.space.is_free(piece.piece)) return bad("lies in another's memory, or outside its tier");
    Seam& seam = place.seams[piece.seam];
    if (piece.at == 0) seam.ready = true;
    if (seam.bytes != piece.at) return bad("lacks a piece");
    place.space.take(piece.piece);
    seam.bytes += piece.piece.bytes;
    if (seam.bytes > ledger_.next_seam - piece.seam) return bad("is longer than there are numbers");
    seam.pieces.push_back(piece.piece);
    seam.records.push_back(record);
    place.idle_bytes += piece.piece.bytes;
  }
  return {};
}

// Its pages are taken from the space already. False: there is no such seam, or another copy uses it.
bool Copies::restore_in_seam(Place& place, tier::Extent extent) {
  const auto found = place.seams.find(extent.offset);
  if (found == place.seams.end() || found->second.used || found->second.bytes != extent.bytes) return false;
  found->second.used = true;
  place.idle_bytes -= extent.bytes;
  return true;
}

}  // namespace terrace::engine
