// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/segments.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "front/sessions/kept_names.h"

namespace terrace::front {

static_assert(shm::kSeamsBegin == tier::kSeamsBegin);

Space& Segments::space_of(SessionId id) {
  Space& space = spaces_[id];
  space.mapped_bytes.resize(node_.mapped.size());
  return space;
}

void Segments::order(const mover::SegmentOrder& order) {
  using Kind = mover::SegmentOrder::Kind;
  if (order.kind == Kind::kAdd || order.kind == Kind::kStitch) return loop_.mover().start(order);
  Space& space = space_of(order.session);
  if (order.kind == Kind::kUnstitch) {
    if (space.seams.erase({index(order.tier), order.extent.offset}) != 0)
      for (Session* session : sessions_.mappers_of(order.session))
        if (session->connection && session->welcomed &&
            !session->connection->take_back_seam(node_.places[index(order.tier)], order.extent.offset))
          sessions_.send(*session, shm::SegmentMessage{.header = {.type = shm::MessageType::kUnstitch},
                                                       .place = node_.places[index(order.tier)],
                                                       .offset = order.extent.offset,
                                                       .bytes = order.extent.bytes});
    return loop_.mover().start(order);
  }
  space.mapped_bytes[index(order.tier)] = order.extent.offset;
  const std::vector<Session*> mappers = sessions_.mappers_of(order.session);
  if (mappers.empty()) return loop_.mover().start(order);
  Space::Retiring& retiring = space.retiring.emplace_back(order);
  for (const Session* session : mappers) retiring.asked.push_back(session->id);
  for (Session* session : mappers)
    if (session->connection && session->welcomed) send_retire(*session, order);  // else when it is back
}

void Segments::send_retire(Session& session, const mover::SegmentOrder& order) {
  sessions_.send(session, shm::SegmentMessage{.header = {.type = shm::MessageType::kRetire},
                                              .place = node_.places[index(order.tier)],
                                              .offset = order.extent.offset,
                                              .bytes = order.extent.bytes});
}

void Segments::retired(Session& session, const shm::SegmentMessage& message) {
  for (Space::Retiring& retiring : space_of(session.space).retiring) {
    const mover::SegmentOrder& order = retiring.order;
    if (node_.places[index(order.tier)] != message.place || order.extent.offset != message.offset ||
        order.extent.bytes != message.bytes || std::erase(retiring.asked, session.id) == 0)
      continue;
    return start_retired(session.space);
  }
  sessions_.end(session, {ErrorCode::kInvalidArgument, "an answer about a segment that nobody asked about", 0});
}

// Nobody is asked any more about some: they go.
void Segments::start_retired(SessionId id) {
  const auto space = spaces_.find(id);
  if (space == spaces_.end()) return;
  std::erase_if(space->second.retiring, [&](const Space::Retiring& retiring) {
    if (retiring.asked.empty()) loop_.mover().start(retiring.order);
    return retiring.asked.empty();
  });
}

void Segments::done(const mover::SegmentDone& done) {
  const mover::SegmentOrder& order = done.order;
  if (!done.result)
    spdlog::warn("segment of {}: {}", node_.options.tiers[index(order.tier)].name, done.result.error().message);
  using Kind = mover::SegmentOrder::Kind;
  const auto space = spaces_.find(order.session);
  const bool added = done.result && order.kind == Kind::kAdd;
  if (space == spaces_.end() || order.kind == Kind::kStitch || order.kind == Kind::kUnstitch) return deliver(done);
  const std::string name = kept_segment_name(order.session, index(order.tier), order.extent.offset);
  if (done.result && !added && std::erase(space->second.kept, name) != 0) keeper_.drop(name);
  if (!added) return deliver(done);
  if (keeper_.keep(name, node_.mapped[index(order.tier)]->descriptor(order.session, order.extent.offset)))
    space->second.kept.push_back(name);
  keeper_.when_kept([this, done] { deliver(done); });
}

// To the engine, which records it and gives out extents of it from now on; and to the trainers, after the record: what
// they map is what a successor knows of.
void Segments::deliver(const mover::SegmentDone& done) {
  const mover::SegmentOrder& order = done.order;
  using Kind = mover::SegmentOrder::Kind;
  if (order.kind == Kind::kUnstitch) return;
  const auto space = spaces_.find(order.session);
  // A seam before the engine may let it go again; whoever leases there waits until it is mapped.
  if (order.kind == Kind::kStitch && done.result && space != spaces_.end()) {
    space->second.seams[{index(order.tier), order.extent.offset}] = order.pieces;
    for (Session* session : sessions_.mappers_of(order.session))
      if (session->connection && session->welcomed) send_seam(*session, index(order.tier), order.extent, order.pieces);
  }
  loop_.engine().segment_done(loop_.now(), done);
  if (!done.result || order.kind != Kind::kAdd || space == spaces_.end()) return;
  space->second.mapped_bytes[index(order.tier)] = order.extent.end();
  for (Session* session : sessions_.mappers_of(order.session))
    if (session->connection && session->welcomed) send_segment(*session, index(order.tier), order.extent);
}

// Who only reads gets a descriptor that memory cannot be written through. (A GPU's has no such thing.)
void Segments::send_segment(Session& session, std::size_t tier, tier::Extent extent) {
  const shm::SegmentMessage message{.header = {.type = shm::MessageType::kSegment},
                                    .place = node_.places[tier],
                                    .offset = extent.offset,
                                    .bytes = extent.bytes};
  const Space& space = space_of(session.space);
  const auto lost = space.lost.find({tier, extent.offset});  // its trainers keep what they lease there
  const int descriptor =
      lost != space.lost.end() ? lost->second.get() : node_.mapped[tier]->descriptor(session.space, extent.offset);
  if (session.writes || node_.is_gpu(tier)) return sessions_.send(session, message, std::array{descriptor});
  const Fd readable(::open(fmt::format("/proc/self/fd/{}", descriptor).c_str(), O_RDONLY | O_CLOEXEC));
  if (!readable)
    return sessions_.end(session,
                         {ErrorCode::kResourceExhausted, "a segment could not be opened for reading alone", errno});
  sessions_.send(session, message, std::array{readable.get()});
}

void Segments::send_all(Session& session) {
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

void Segments::send_seam(Session& session, std::size_t tier, tier::Extent seam, std::span<const tier::Extent> pieces) {
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
    sessions_.send(session, message);
    message.at += bytes;
    pieces = pieces.subspan(message.count);
  }
}

void Segments::send_retiring(Session& session) {
  for (const Space::Retiring& retiring : space_of(session.space).retiring)
    if (std::ranges::find(retiring.asked, session.id) != retiring.asked.end()) send_retire(session, retiring.order);
}

void Segments::left(SessionId session, SessionId space) {
  const auto its = spaces_.find(space);
  if (space == session || its == spaces_.end()) return;
  for (Space::Retiring& retiring : its->second.retiring) std::erase(retiring.asked, session);
  start_retired(space);
}

void Segments::gone(SessionId id) {
  const auto space = spaces_.extract(id);
  if (space.empty()) return;
  for (const std::string& name : space.mapped().kept) keeper_.drop(name);
  loop_.mover().drop(id);
}

}  // namespace terrace::front
