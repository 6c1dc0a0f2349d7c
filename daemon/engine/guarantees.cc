// SPDX-License-Identifier: Apache-2.0
// Guarantees (DESIGN decision 13): in every mapped tier the sum over sessions of max(floor, mapped segments) stays
// within the capacity. Here segments come, and from the end of a session's space they are taken back.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/values/planted.h"

namespace terrace::engine {

std::uint64_t EngineImpl::claimed_bytes(std::size_t tier) const {
  std::uint64_t sum = 0;
  for (const auto& [id, session] : sessions_) sum += session->places[tier]->claimed_bytes();
  return sum;
}

std::uint64_t EngineImpl::floors_bytes(std::size_t tier, const Session* except) const {
  std::uint64_t sum = 0;
  for (const auto& [id, session] : sessions_)
    if (session.get() != except) sum += session->places[tier]->floor_bytes;
  return sum;
}

// What the session could have in the tier, were all its own copies to go.
std::uint64_t EngineImpl::limit_bytes(const Session& session, std::size_t tier) const {
  const Place& place = *session.places[tier];
  if (place.fence != kNoFence) return place.fence;
  std::uint64_t others = claimed_bytes(tier) - place.claimed_bytes();
  if (!opens_.empty()) others += opens_.front().floors[tier];
  const std::uint64_t capacity = tiers_[tier].options.capacity_bytes;
  const std::uint64_t left = capacity - std::min(capacity, others);
  return std::max({left, place.floor_bytes, place.space.capacity_bytes()}) - place.stuck_bytes -
         place.space.retired_bytes();
}

bool EngineImpl::can_grow(const Session& session, std::size_t tier) const {
  const Place& place = *session.places[tier];
  if (place.fence != kNoFence || place.removing_bytes > 0 || place.stuck_bytes > 0 || place.add_failed) return false;
  const std::uint64_t capacity = tiers_[tier].options.capacity_bytes;
  const std::uint64_t grown = place.mapped_bytes() + tiers_[tier].options.segment_bytes;
  if (place.adding_bytes > 0 || grown > capacity) return false;
  if (grown <= place.floor_bytes) return true;
  std::uint64_t others = claimed_bytes(tier) - place.claimed_bytes();
  if (!opens_.empty()) others += opens_.front().floors[tier];
  return grown + others <= capacity || planted(Plant::kFloorIgnored);
}

bool EngineImpl::grow(Session& session, std::size_t tier) {
  if (!can_grow(session, tier)) return false;
  Place& place = *session.places[tier];
  place.adding_bytes = tiers_[tier].options.segment_bytes;
  output_.segment_orders.push_back({mover::SegmentOrder::Kind::kAdd,
                                    session.id,
                                    static_cast<TierId>(tier),
                                    {place.space.capacity_bytes(), place.adding_bytes}});
  return true;
}

void EngineImpl::segment_done(Time now, const mover::SegmentDone& done) {
  now_ = now;
  Session* session = find_session(done.order.session);
  if (session != nullptr) {
    const std::size_t tier = terrace::index(done.order.tier);
    Place& place = *session->places[tier];
    const std::uint64_t bytes = done.order.extent.bytes;
    if (done.order.kind == mover::SegmentOrder::Kind::kStitch) {
      if (!stitched(*session, tier, done)) return run();  // others are still to come
    } else if (done.order.kind == mover::SegmentOrder::Kind::kAdd) {
      TERRACE_CHECK(place.adding_bytes == bytes);
      place.adding_bytes = 0;
      place.add_failed = !done.result;
      if (done.result) {
        place.space.extend(bytes);
        touch(*session);
        if (place.fence != kNoFence) fence(*session, tier, place.fence);
      } else {
        place.add_error = done.result.error().message;
      }
    } else if (done.order.kind == mover::SegmentOrder::Kind::kRemove) {
      TERRACE_CHECK(place.removing_bytes >= bytes);
      place.removing_bytes -= bytes;
      if (!done.result) place.stuck_bytes += bytes;
      for (auto& [id, other] : sessions_) other->places[tier]->add_failed = false;
      stir_all();
    }
    ++session->events;
    stir(*session);
    opens_stirred_ = true;
  }
  run();
}

// What the session's segments will count for when all that was asked back is back.
std::uint64_t EngineImpl::projected_bytes(const Session& session, std::size_t tier) const {
  const Place& place = *session.places[tier];
  const std::uint64_t stays = place.fence != kNoFence ? place.fence : place.space.capacity_bytes() + place.adding_bytes;
  return std::max(place.floor_bytes, stays + place.stuck_bytes);
}

bool EngineImpl::can_open(const PendingOpen& open) const {
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier)
    if (tiers_[tier].mapped() && claimed_bytes(tier) + open.floors[tier] > tiers_[tier].options.capacity_bytes)
      return false;
  return true;
}

// One after the other: the first waits until its floors are backed.
void EngineImpl::pump_opens() {
  while (!opens_.empty() && can_open(opens_.front())) {
    const PendingOpen open = std::move(opens_.front());
    opens_.erase(opens_.begin());
    open_now(open.request, open.open, open.floors);
  }
  if (opens_.empty())
    unfence_all();
  else
    fence_for(opens_.front());
}

// Asks segments back, one after the other from whoever has most beyond its floor, until the floors fit.
void EngineImpl::fence_for(const PendingOpen& open) {
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier)
    if (tiers_[tier].mapped() && floors_bytes(tier, nullptr) + open.floors[tier] > tiers_[tier].options.capacity_bytes)
      return unfence_all();  // only a session that closes can help
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (!tiers_[tier].mapped()) continue;
    while (true) {
      std::uint64_t sum = open.floors[tier];
      Session* most = nullptr;
      std::uint64_t most_beyond = 0;
      for (const auto& [id, session] : sessions_) {
        const Place& place = *session->places[tier];
        sum += projected_bytes(*session, tier);
        const std::uint64_t now = std::min(place.fence, place.space.capacity_bytes());
        const std::uint64_t beyond = now - std::min(now, place.floor_bytes);
        if (session->life == Session::Life::kOpen && beyond > most_beyond) {
          most = session.get();
          most_beyond = beyond;
        }
      }
      if (sum <= tiers_[tier].options.capacity_bytes || most == nullptr) break;
      const Place& place = *most->places[tier];
      fence(*most, tier, std::min(place.fence, place.space.capacity_bytes()) - tiers_[tier].options.segment_bytes);
      stir(*most);
    }
  }
}

void EngineImpl::fence(Session& session, std::size_t tier, std::uint64_t at) {
  Place& place = *session.places[tier];
  fenced_ = true;
  place.fence = at;
  const std::uint64_t end = place.space.capacity_bytes();
  if (end <= at) return;
  unstitch_idle(session, tier);
  for (const tier::Extent& extent : place.space.free_within({at, end - at})) {
    place.space.take(extent);
    place.fenced.push_back(extent);
    place.fenced_bytes += extent.bytes;
  }
}

void EngineImpl::unfence_all() {
  if (!std::exchange(fenced_, false)) return;
  for (auto& [id, session] : sessions_)
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier)
      if (tiers_[tier].mapped() && session->places[tier]->fence != kNoFence) unfence(*session, tier);
}

void EngineImpl::unfence(Session& session, std::size_t tier) {
  Place& place = *session.places[tier];
  for (const tier::Extent& extent : place.fenced) place.space.free(extent);
  place.fenced.clear();
  place.fenced_bytes = 0;
  place.fence = kNoFence;
  for (const Handle& handle : place.fence_wants) unwant(session, handle);
  place.fence_wants.clear();
  const Level level = tiers_[tier].level;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (tensor.published == level && at_tier(tensor, tier)) show_lent(session, Slot{at}, is_gone(session, tensor));
  }
  ++session.events;
  stir(session);
}

bool EngineImpl::is_behind_fence(const Session& session, const Tensor& tensor, Level level) const {
  const Place& place = *session.places[tier_index(tensor, level)];
  return place.fence != kNoFence && place.reaches(tensor.extent(level), place.fence);
}

// Empties what lies behind the fences.
void EngineImpl::reclaim(Session& session) {
  if (!fenced_) return;
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (!tiers_[tier].mapped() || session.places[tier]->fence == kNoFence) continue;
    std::erase_if(session.places[tier]->fence_wants, [&](const Handle& handle) {
      if (at_tier(session.at(handle.slot), tier)) return false;
      unwant(session, handle);  // it left by another way, as what was lost there does
      ++session.events;
      return true;
    });
    for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
      const Tensor& tensor = session.tensors[at];
      if (!tensor.live() || !at_tier(tensor, tier)) continue;
      if (is_behind_fence(session, tensor, tiers_[tier].level)) reclaim_copy(session, tier, Slot{at});
    }
    give_back_segments(session, tier);
  }
}

void EngineImpl::reclaim_copy(Session& session, std::size_t tier, Slot slot) {
  const Tensor& tensor = session.at(slot);
  const Level level = tiers_[tier].level;
  Place& place = *session.places[tier];
  const Handle handle{slot, tensor.incarnation};
  const auto wanted = std::find(place.fence_wants.begin(), place.fence_wants.end(), handle);
  if (tensor.published == level) show_lent(session, slot, true);
  if (leased(session, slot) && tensor.published == level) {
    if (wanted != place.fence_wants.end()) return;
    place.fence_wants.push_back(handle);
    want(session, slot);
    ++session.events;  // looked at once more, for it may have ended by now
    return stir(session);
  }
  if (wanted != place.fence_wants.end()) {  // what can not move after all is not kept from its owner
    place.fence_wants.erase(wanted);
    unwant(session, handle);
    ++session.events;
  }
  if (tensor.leaving == level)
    scheduler_.raise(TransferId{tensor.transfer}, mover::Class::kAwaitedWriteBack, kNever);
  else if (may_move(tensor) && tensor.pinned != level && !tensor.deleted)
    move_below_fence(session, tier, slot);
}

void EngineImpl::move_below_fence(Session& session, std::size_t tier, Slot slot) {
  const Tensor& tensor = session.at(slot);
  const Level level = tiers_[tier].level;
  Place& place = *session.places[tier];
  if (level != home_level_) {
    if (place.write_back_error) return;  // not again and again: at the next event
    evict(session, slot, level, EvictionReason::kTakenBack, {mover::Class::kAwaitedWriteBack, kNever}, false);
    return;
  }
  const auto lower = place.space.allocate(tensor.extent_bytes());
  if (!lower) {
    slide_one(session, tier);
    return;
  }
  place.space.free(*lower);
  if (tensor.published != level || claim(session, slot)) start_slide(session, slot, level, lower->offset);
}

void EngineImpl::give_back_segments(Session& session, std::size_t tier) {
  Place& place = *session.places[tier];
  const std::uint64_t end = place.space.capacity_bytes();
  if (place.adding_bytes > 0 || end <= place.fence || place.fenced_bytes != end - place.fence) return;
  const std::uint64_t segment = tiers_[tier].options.segment_bytes;
  const std::uint64_t begin = place.fence;
  unfence(session, tier);
  TERRACE_CHECK(place.space.shrink(end - begin));
  touch(session);
  place.removing_bytes += end - begin;
  for (std::uint64_t offset = end; offset > begin; offset -= segment)
    output_.segment_orders.push_back(
        {mover::SegmentOrder::Kind::kRemove, session.id, static_cast<TierId>(tier), {offset - segment, segment}});
}

// To whoever asks: names within a tenant are nobody else's to know.
std::string EngineImpl::in_words(const Session& session, const Tenant& asks) {
  const auto number = static_cast<std::uint32_t>(session.id);
  const Member& first = session.members.front();
  if (session.is_share())
    return fmt::format("share {}({}, {} sessions, of pid {} first)",
                       session.tenant == asks ? "'" + session.share + "' " : "", number, session.members.size(),
                       first.pid);
  return fmt::format("session {} (pid {}{}{})", number, first.pid, first.label.empty() ? "" : ", ", first.label);
}

Error EngineImpl::open_refusal(const PendingOpen& open) const {
  // The cure first: a long list is cut where a trainer left no room for it.
  std::string text =
      "the session's guarantees cannot be backed: open with smaller guarantees, or let every rank say how many share "
      "the "
      "node "
      "(local_world_size, LOCAL_WORLD_SIZE; without, each is guaranteed half of each place).";
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (!tiers_[tier].mapped() || claimed_bytes(tier) + open.floors[tier] <= tiers_[tier].options.capacity_bytes)
      continue;
    text += fmt::format(" '{}' has {} bytes, {} are asked for;", tiers_[tier].options.name,
                        tiers_[tier].options.capacity_bytes, open.floors[tier]);
    for (const auto& [id, session] : sessions_) {
      const Place& place = *session->places[tier];
      if (place.claimed_bytes() == 0) continue;
      text += fmt::format(" {} is guaranteed {} and has mapped {};", in_words(*session, open.open.tenant),
                          place.floor_bytes, place.mapped_bytes());
    }
  }
  if (text.back() == ';') text.back() = '.';
  return {ErrorCode::kResourceExhausted, std::move(text), 0};
}

}  // namespace terrace::engine
