// SPDX-License-Identifier: Apache-2.0
// Segments on their way to the trainers that map them, and back: a session's one, or all that have a part in a share.
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/bytes.h"
#include "front/host.h"

namespace terrace::front {
namespace {

// Short: all names together are one string of the next daemon's environment.
std::string segment_name(SessionId space, std::size_t tier, std::uint64_t offset) {
  return fmt::format("s{}.{}.{}", static_cast<std::uint32_t>(space), tier, offset / (2 * kMiB));
}

}  // namespace

// The trainers that map the space's segments, whether they are connected just now or not.
std::vector<Session*> Host::mappers_of(SessionId space) {
  std::vector<Session*> mappers;
  for (auto& [id, session] : sessions_)
    if (session->space == space && session->maps && session->state == Session::State::kOpen)
      mappers.push_back(session.get());
  return mappers;
}

Space& Host::space_of(SessionId id) {
  Space& space = spaces_[id];
  space.mapped_bytes.resize(node_.mapped.size());
  return space;
}

void Host::order(const mover::SegmentOrder& order) {
  using Kind = mover::SegmentOrder::Kind;
  if (order.kind == Kind::kAdd || order.kind == Kind::kStitch) return mover_->start(order);
  Space& space = space_of(order.session);
  if (order.kind == Kind::kUnstitch) {
    if (space.seams.erase({index(order.tier), order.extent.offset}) != 0)
      for (Session* session : mappers_of(order.session))
        if (session->connection && session->welcomed)
          send(*session, shm::SegmentMessage{.header = {.type = shm::MessageType::kUnstitch},
                                             .place = node_.places[index(order.tier)],
                                             .offset = order.extent.offset,
                                             .bytes = order.extent.bytes});
    return mover_->start(order);
  }
  space.mapped_bytes[index(order.tier)] = order.extent.offset;
  const std::vector<Session*> mappers = mappers_of(order.session);
  if (mappers.empty()) return mover_->start(order);
  Space::Retiring& retiring = space.retiring.emplace_back(order);
  for (const Session* session : mappers) retiring.asked.push_back(session->id);
  for (Session* session : mappers)
    if (session->connection && session->welcomed) send_retire(*session, order);  // else when it is back
}

void Host::send_retire(Session& session, const mover::SegmentOrder& order) {
  send(session, shm::SegmentMessage{.header = {.type = shm::MessageType::kRetire},
                                    .place = node_.places[index(order.tier)],
                                    .offset = order.extent.offset,
                                    .bytes = order.extent.bytes});
}

// A trainer has unmapped a segment, as it was asked to.
void Host::retired(Session& session, const shm::SegmentMessage& message) {
  for (Space::Retiring& retiring : space_of(session.space).retiring) {
    const mover::SegmentOrder& order = retiring.order;
    if (node_.places[index(order.tier)] != message.place || order.extent.offset != message.offset ||
        order.extent.bytes != message.bytes || std::erase(retiring.asked, session.id) == 0)
      continue;
    return start_retired(session.space);
  }
  end(session, {ErrorCode::kInvalidArgument, "an answer about a segment that nobody asked about", 0});
}

// Nobody is asked any more about some: they go.
void Host::start_retired(SessionId id) {
  const auto space = spaces_.find(id);
  if (space == spaces_.end()) return;
  std::erase_if(space->second.retiring, [&](const Space::Retiring& retiring) {
    if (retiring.asked.empty()) mover_->start(retiring.order);
    return retiring.asked.empty();
  });
}

void Host::segment_done(const mover::SegmentDone& done) {
  const mover::SegmentOrder& order = done.order;
  if (!done.result)
    spdlog::warn("segment of {}: {}", node_.options.tiers[index(order.tier)].name, done.result.error().message);
  using Kind = mover::SegmentOrder::Kind;
  const auto space = spaces_.find(order.session);
  const bool added = done.result && order.kind == Kind::kAdd;
  if (space == spaces_.end() || order.kind == Kind::kStitch || order.kind == Kind::kUnstitch)
    return deliver_segment(done);
  const std::string name = segment_name(order.session, index(order.tier), order.extent.offset);
  if (done.result && !added && std::erase(space->second.kept, name) != 0) keeper_.drop(name);
  if (!added) return deliver_segment(done);
  if (keeper_.keep(name, node_.mapped[index(order.tier)]->descriptor(order.session, order.extent.offset)))
    space->second.kept.push_back(name);
  keeper_.when_kept([this, done] { deliver_segment(done); });
}

// To the engine, which records it and gives out extents of it from now on; and to the trainers, after the record: what
// they map is what a successor knows of.
void Host::deliver_segment(const mover::SegmentDone& done) {
  const mover::SegmentOrder& order = done.order;
  using Kind = mover::SegmentOrder::Kind;
  if (order.kind == Kind::kUnstitch) return;
  const auto space = spaces_.find(order.session);
  // A seam before the engine may let it go again; whoever leases there waits until it is mapped.
  if (order.kind == Kind::kStitch && done.result && space != spaces_.end()) {
    space->second.seams[{index(order.tier), order.extent.offset}] = order.pieces;
    for (Session* session : mappers_of(order.session))
      if (session->connection && session->welcomed) send_seam(*session, index(order.tier), order.extent, order.pieces);
  }
  loop_->engine().segment_done(now(), done);
  if (!done.result || order.kind != Kind::kAdd || space == spaces_.end()) return;
  space->second.mapped_bytes[index(order.tier)] = order.extent.end();
  for (Session* session : mappers_of(order.session))
    if (session->connection && session->welcomed) send_segment(*session, index(order.tier), order.extent);
}

// Who only reads gets a descriptor that memory cannot be written through. (A GPU's has no such thing.)
void Host::send_segment(Session& session, std::size_t tier, tier::Extent extent) {
  const shm::SegmentMessage message{.header = {.type = shm::MessageType::kSegment},
                                    .place = node_.places[tier],
                                    .offset = extent.offset,
                                    .bytes = extent.bytes};
  const Space& space = space_of(session.space);
  const auto lost = space.lost.find({tier, extent.offset});  // its trainers keep what they lease there
  const int descriptor =
      lost != space.lost.end() ? lost->second.get() : node_.mapped[tier]->descriptor(session.space, extent.offset);
  if (session.writes || node_.is_gpu(tier)) return send(session, message, std::array{descriptor});
  const Fd readable(::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDONLY | O_CLOEXEC));
  if (!readable)
    return end(session, {ErrorCode::kResourceExhausted, "a segment could not be opened for reading alone", errno});
  send(session, message, std::array{readable.get()});
}

void Host::send_segments(Session& session) {
  const Space& space = space_of(session.space);
  for (std::size_t tier = 0; tier < node_.mapped.size(); ++tier) {
    if (!node_.mapped[tier]) continue;
    const std::uint64_t unit = node_.options.tiers[tier].segment_bytes;
    for (std::uint64_t offset = 0; offset < space.mapped_bytes[tier]; offset += unit)
      send_segment(session, tier, {offset, unit});
  }
  for (const auto& [where, pieces] : space.seams) {
    std::uint64_t bytes = 0;
    for (const tier::Extent& piece : pieces) bytes += piece.bytes;
    send_seam(session, where.first, {where.second, bytes}, pieces);
  }
}

void Host::send_seam(Session& session, std::size_t tier, tier::Extent seam, std::span<const tier::Extent> pieces) {
  shm::StitchMessage message;
  message.place = node_.places[tier];
  message.offset = seam.offset;
  message.bytes = seam.bytes;
  while (!pieces.empty()) {
    message.count = static_cast<std::uint32_t>(std::min(pieces.size(), shm::kStitchPiecesMax));
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < message.count; ++i) {
      message.pieces[i] = {pieces[i].offset, pieces[i].bytes};
      bytes += pieces[i].bytes;
    }
    send(session, message);
    message.at += bytes;
    pieces = pieces.subspan(message.count);
  }
}

// Those that are to go, and that it was asked about.
void Host::send_retiring(Session& session) {
  for (const Space::Retiring& retiring : space_of(session.space).retiring)
    if (std::ranges::find(retiring.asked, session.id) != retiring.asked.end()) send_retire(session, retiring.order);
}

// A former daemon's, as its catalog has them. One of a GPU that cannot be mapped is lost with what lies there, and
// nothing else.
Result<void> Host::take_back_segments(const engine::SessionRecord& was) {
  const SessionId id{was.id};
  Space& space = space_of(id);
  for (std::size_t tier = 0; tier < node_.mapped.size(); ++tier) {
    if (!node_.mapped[tier]) continue;
    const std::uint64_t unit = node_.options.tiers[tier].segment_bytes;
    for (std::uint64_t offset = 0; offset < was.mapped_bytes[tier]; offset += unit) {
      const std::string name = segment_name(id, tier, offset);
      auto segment = adopted_.extract(name);
      if (segment.empty()) return fail(ErrorCode::kDataLoss, name + " did not come back");
      space.kept.push_back(name);
      Fd kept(node_.is_gpu(tier) ? fcntl(segment.mapped().get(), F_DUPFD_CLOEXEC, 0) : -1);
      const auto installed = node_.mapped[tier]->install(id, {offset, unit}, std::move(segment.mapped()));
      if (!installed && !kept) return installed;
      if (installed) continue;
      const engine::LostSegment lost{id, static_cast<TierId>(tier), {offset, unit}, installed.error().message};
      const bool is_gone = installed.error().code == ErrorCode::kDataLoss || failures_.was_lost(tier);
      if (!is_gone && config_.tiers[tier].take_back == config::TakeBack::kWait) not_yet_.push_back(lost);
      lose_segment(lost, std::move(kept));
    }
    space.mapped_bytes[tier] = was.mapped_bytes[tier];
  }
  return take_back_seams(id, space);
}

// In the order of their pieces. One that cannot be mapped again is a former daemon's session lost: what is leased there
// must stay within reach.
Result<void> Host::take_back_seams(SessionId id, Space& space) {
  std::map<std::pair<std::size_t, std::uint64_t>, std::map<std::uint64_t, tier::Extent>> seams;
  for (const engine::SeamRecord& piece : home_.catalog().seams())
    if (piece.session == static_cast<std::uint32_t>(id)) seams[{piece.tier, piece.seam}].emplace(piece.at, piece.piece);
  for (const auto& [where, parts] : seams) {
    const auto& [tier, offset] = where;
    std::vector<tier::Extent> pieces;
    std::uint64_t bytes = 0;
    bool sound = offset >= tier::kSeamsBegin && tier < node_.mapped.size() && node_.mapped[tier] != nullptr;
    for (const auto& [at, piece] : parts) {
      sound &= at == bytes && piece.bytes % kPageBytes == 0 && piece.offset % kPageBytes == 0 &&
               piece.bytes - 1 < space.mapped_bytes[tier] && piece.offset <= space.mapped_bytes[tier] - piece.bytes;
      bytes += piece.bytes;
      pieces.push_back(piece);
    }
    if (!sound) return {};  // damage, which the engine names
    if (auto stitched = node_.mapped[tier]->stitch(id, {offset, bytes}, pieces); !stitched) return stitched;
    space.seams.emplace(where, std::move(pieces));
  }
  return {};
}

void Host::lose_segment(engine::LostSegment segment, Fd kept) {
  const std::string& tier = node_.options.tiers[index(segment.tier)].name;
  segment.why = fmt::format("a segment of {} did not come back: {}", format_bytes(segment.extent.bytes), segment.why);
  if (!node_.mapped[index(segment.tier)]->failure())  // else that is said, once
    spdlog::error("session {}, {}: {}", static_cast<std::uint32_t>(segment.space), tier, segment.why);
  space_of(segment.space).lost.emplace(std::pair(index(segment.tier), segment.extent.offset), std::move(kept));
  lost_segments_.push_back(std::move(segment));
}

// Nothing is left of a session that the engine knew.
void Host::gone(SessionId id) {
  if (foreseer_) foreseer_->forget(id);
  if (auto node = sessions_.extract(id); !node.empty()) {
    for (const std::string& name : node.mapped()->kept) keeper_.drop(name);
    node.mapped()->state = Session::State::kEnding;  // where it was CloseSession, and not end()
    forget_ring(*node.mapped());
    spdlog::info("session {} is gone", static_cast<std::uint32_t>(id));
    const SessionId space = node.mapped()->space;
    reactor_->spend(std::shared_ptr<void>(std::move(node.mapped())));
    if (const auto its = spaces_.find(space); space != id && its != spaces_.end()) {
      for (Space::Retiring& retiring : its->second.retiring) std::erase(retiring.asked, id);
      start_retired(space);
    }
  }
  if (auto space = spaces_.extract(id); !space.empty()) {
    for (const std::string& name : space.mapped().kept) keeper_.drop(name);
    mover_->drop(id);
  }
}

}  // namespace terrace::front
