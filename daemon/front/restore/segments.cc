// SPDX-License-Identifier: Apache-2.0
// The memory of sessions and shares, as a former daemon's catalog has it.
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <map>
#include <utility>

#include "base/bytes.h"
#include "front/restore/restore.h"
#include "front/sessions/kept_names.h"

namespace terrace::front {

Result<void> Restore::take_back_segments(const engine::SessionRecord& was) {
  const SessionId id{was.id};
  Space& space = around_.segments.space_of(id);
  for (std::size_t tier = 0; tier < around_.node.mapped.size(); ++tier) {
    if (!around_.node.mapped[tier]) continue;
    const std::uint64_t unit = around_.node.options.tiers[tier].segment_bytes;
    for (std::uint64_t offset = 0; offset < was.mapped_bytes[tier]; offset += unit)
      if (auto taken = take_back_segment(id, tier, {offset, unit}, space); !taken) return taken;
    space.mapped_bytes[tier] = was.mapped_bytes[tier];
  }
  return take_back_seams(id, space);
}

// One of a GPU that cannot be mapped is lost with what lies there, and nothing else.
Result<void> Restore::take_back_segment(SessionId id, std::size_t tier, tier::Extent extent, Space& space) {
  const std::string name = kept_segment_name(id, tier, extent.offset);
  auto segment = adopted_.extract(name);
  if (segment.empty()) return fail(ErrorCode::kDataLoss, name + " did not come back");
  space.kept.push_back(name);
  Fd kept(around_.node.is_gpu(tier) ? fcntl(segment.mapped().get(), F_DUPFD_CLOEXEC, 0) : -1);
  const auto installed = around_.node.mapped[tier]->install(id, extent, std::move(segment.mapped()));
  if (installed || !kept) return installed;
  const engine::LostSegment lost{id, static_cast<TierId>(tier), extent, installed.error().message};
  const bool is_gone = installed.error().code == ErrorCode::kDataLoss || around_.failures.was_lost(tier);
  if (!is_gone && around_.config.tiers[tier].take_back == config::TakeBack::kWait) not_yet_.push_back(lost);
  lose_segment(lost, std::move(kept));
  return {};
}

// In the order of their pieces. One that cannot be mapped again is a former daemon's session lost: what is leased there
// must stay within reach.
Result<void> Restore::take_back_seams(SessionId id, Space& space) {
  std::map<std::pair<std::size_t, std::uint64_t>, std::map<std::uint64_t, tier::Extent>> seams;
  const engine::CatalogMemory& catalog = around_.home.catalog();
  std::size_t record = 0;
  while (catalog.session(record).id != static_cast<std::uint32_t>(id)) ++record;  // who asks has it from there
  for (const engine::SeamRecord& piece : catalog.seams(record))
    if (piece.session == static_cast<std::uint32_t>(id)) seams[{piece.tier, piece.seam}].emplace(piece.at, piece.piece);
  for (const auto& [where, parts] : seams) {
    const auto& [tier, offset] = where;
    std::vector<tier::Extent> pieces;
    std::uint64_t bytes = 0;
    bool sound =
        offset >= tier::kSeamsBegin && tier < around_.node.mapped.size() && around_.node.mapped[tier] != nullptr;
    for (const auto& [at, piece] : parts) {
      sound &= at == bytes && piece.bytes % kPageBytes == 0 && piece.offset % kPageBytes == 0 &&
               piece.bytes - 1 < space.mapped_bytes[tier] && piece.offset <= space.mapped_bytes[tier] - piece.bytes;
      bytes += piece.bytes;
      pieces.push_back(piece);
    }
    if (!sound) return {};  // damage, which the engine names
    if (auto stitched = around_.node.mapped[tier]->stitch(id, {offset, bytes}, pieces); !stitched) return stitched;
    space.seams.emplace(where, std::move(pieces));
  }
  return {};
}

void Restore::lose_segment(engine::LostSegment segment, Fd kept) {
  const std::string& tier = around_.node.options.tiers[index(segment.tier)].name;
  segment.why = fmt::format("a segment of {} did not come back: {}", format_bytes(segment.extent.bytes), segment.why);
  if (!around_.node.mapped[index(segment.tier)]->failure())  // else that is said, once
    spdlog::error("session {}, {}: {}", static_cast<std::uint32_t>(segment.space), tier, segment.why);
  around_.segments.space_of(segment.space)
      .lost.emplace(std::pair(index(segment.tier), segment.extent.offset), std::move(kept));
  lost_segments_.push_back(std::move(segment));
}

}  // namespace terrace::front
