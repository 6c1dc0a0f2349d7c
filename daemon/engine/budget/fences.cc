// SPDX-License-Identifier: Apache-2.0
// From the end of a session's space segments are taken back, for whoever waits to open.
#include "engine/budget/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace terrace::engine {

// What the session's segments will count for when all that was asked back is back.
std::uint64_t Budget::projected_bytes(const Holdings& session, TierId tier) const {
  const Place& place = *session.places[tier];
  const std::uint64_t stays = place.fence != kNoFence ? place.fence : place.space.capacity_bytes() + place.adding_bytes;
  return std::max(place.floor_bytes, stays + place.stuck_bytes);
}

bool Budget::can_open(const PendingOpen& open) const {
  for (const TierId tier : tiers_.ids())
    if (tiers_[tier].mapped() && claimed_bytes(tier) + open.floors[index(tier)] > tiers_[tier].options.capacity_bytes)
      return false;
  return true;
}

// Asks segments back, one after the other from whoever has most beyond its floor, until the floors fit.
void Budget::fence_for(const PendingOpen& open) {
  for (const TierId tier : tiers_.ids())
    if (tiers_[tier].mapped() &&
        floors_bytes(tier, nullptr) + open.floors[index(tier)] > tiers_[tier].options.capacity_bytes)
      return unfence_all();  // only a session that closes can help
  for (const TierId tier : tiers_.ids()) {
    if (!tiers_[tier].mapped()) continue;
    while (true) {
      std::uint64_t sum = open.floors[index(tier)];
      Holdings* most = nullptr;
      std::uint64_t most_beyond = 0;
      for (const auto& [id, session] : registry_.all) {
        const Place& place = *session->places[tier];
        sum += projected_bytes(*session, tier);
        const std::uint64_t now = std::min(place.fence, place.space.capacity_bytes());
        const std::uint64_t beyond = now - std::min(now, place.floor_bytes);
        if (session->life == Holdings::Life::kOpen && beyond > most_beyond) {
          most = session.get();
          most_beyond = beyond;
        }
      }
      if (sum <= tiers_[tier].options.capacity_bytes || most == nullptr) break;
      const Place& place = *most->places[tier];
      fence(*most, tier, std::min(place.fence, place.space.capacity_bytes()) - tiers_[tier].options.segment_bytes);
      wakes_.stir(*most);
    }
  }
}

void Budget::fence(Holdings& session, TierId tier, std::uint64_t at) {
  Place& place = *session.places[tier];
  fenced_ = true;
  place.fence = at;
  const std::uint64_t end = place.space.capacity_bytes();
  if (end <= at) return;
  copies_.unstitch_idle(session, tier);
  for (const tier::Extent& extent : place.space.free_within({at, end - at})) {
    place.space.take(extent);
    place.fenced.push_back(extent);
    place.fenced_bytes += extent.bytes;
  }
}

void Budget::unfence_all() {
  if (!std::exchange(fenced_, false)) return;
  for (auto& [id, session] : registry_.all)
    for (const TierId tier : tiers_.ids())
      if (tiers_[tier].mapped() && session->places[tier]->fence != kNoFence) unfence(*session, tier);
}

void Budget::unfence(Holdings& session, TierId tier) {
  Place& place = *session.places[tier];
  for (const tier::Extent& extent : place.fenced) place.space.free(extent);
  place.fenced.clear();
  place.fenced_bytes = 0;
  place.fence = kNoFence;
  for (const Handle& handle : place.fence_wants) words_.unwant(session, handle);
  place.fence_wants.clear();
  const Level level = tiers_[tier].level;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (tensor.published == level && tiers_.at_tier(tensor, tier))
      words_.show_lent(session, Slot{at}, tiers_.is_gone(session, tensor));
  }
  wakes_.changed(session);
}

void Budget::give_back_segments(Holdings& session, TierId tier) {
  Place& place = *session.places[tier];
  const std::uint64_t end = place.space.capacity_bytes();
  if (place.adding_bytes > 0 || end <= place.fence || place.fenced_bytes != end - place.fence) return;
  const std::uint64_t segment = tiers_[tier].options.segment_bytes;
  const std::uint64_t begin = place.fence;
  unfence(session, tier);
  TERRACE_CHECK(place.space.shrink(end - begin));
  records_.touch(session);
  place.removing_bytes += end - begin;
  for (std::uint64_t offset = end; offset > begin; offset -= segment)
    turn_.output.segment_orders.push_back(
        {mover::SegmentOrder::Kind::kRemove, session.id, tier, {offset - segment, segment}});
}

// To whoever asks: names within a tenant are nobody else's to know.
std::string Budget::in_words(const Holdings& session, const Tenant& asks) {
  const auto number = static_cast<std::uint32_t>(session.id);
  const Member& first = session.members.front();
  if (session.is_share())
    return fmt::format("share {}({}, {} sessions, of pid {} first)",
                       session.tenant == asks ? "'" + session.share + "' " : "", number, session.members.size(),
                       first.pid);
  return fmt::format("session {} (pid {}{}{})", number, first.pid, first.label.empty() ? "" : ", ", first.label);
}

Error Budget::open_refusal(const PendingOpen& open) const {
  // The cure first: a long list is cut where a trainer left no room for it.
  std::string text =
      "the session's guarantees cannot be backed: open with smaller guarantees, or let every rank say how many share "
      "the "
      "node "
      "(local_world_size, LOCAL_WORLD_SIZE; without, each is guaranteed half of each place).";
  for (const TierId tier : tiers_.ids()) {
    if (!tiers_[tier].mapped() || claimed_bytes(tier) + open.floors[index(tier)] <= tiers_[tier].options.capacity_bytes)
      continue;
    text += fmt::format(" '{}' has {} bytes, {} are asked for;", tiers_[tier].options.name,
                        tiers_[tier].options.capacity_bytes, open.floors[index(tier)]);
    for (const auto& [id, session] : registry_.all) {
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
