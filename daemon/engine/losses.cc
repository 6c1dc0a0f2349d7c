// SPDX-License-Identifier: Apache-2.0
// Memory of a device that is gone: of a GPU that failed, or a segment that a successor could not take back. A copy
// there counts for nothing as soon as nobody leases it (the last release rings): where another one is valid, that is
// the tensor, and else its content is lost. Nothing is moved from there or to there.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"

namespace terrace::engine {

void EngineImpl::tier_failed(Time now, TierId id, const Error& why) {
  now_ = now;
  Tier& tier = tiers_[terrace::index(id)];
  TERRACE_CHECK(tier.level == Level::kDevice);
  if (std::exchange(tier.failed, true)) return;
  tier.loss = why.message;
  if (why.code == ErrorCode::kDataLoss) record_loss(terrace::index(id), true);
  give_up_guarantees(terrace::index(id));
  for (auto& [number, session] : sessions_)
    for (std::uint32_t at = 0; at < session->tensors.size(); ++at) give_up_gone(*session, Slot{at});
  stir_all();
  opens_stirred_ = true;
  run();
}

// For a successor: nothing of it is worth waiting for.
void EngineImpl::record_loss(std::size_t tier, bool lost) {
  std::vector<TierRecord> records(catalog_->tiers().begin(), catalog_->tiers().end());
  if ((records[tier].lost != 0) == lost) return;
  records[tier].lost = lost ? 1 : 0;
  catalog_->put(records);
  commit();
}

// Nobody waits for memory there, and nobody is asked to give any back.
void EngineImpl::give_up_guarantees(std::size_t tier) {
  for (PendingOpen& open : opens_) open.floors[tier] = 0;
  std::erase_if(opens_, [&](const PendingOpen& open) {
    const auto floors = floors_of(open.open);
    if (!floors) answer(open.request, std::unexpected(floors.error()));
    return !floors.has_value();
  });
  for (auto& [id, session] : sessions_)
    if (session->places[tier]->fence != kNoFence) unfence(*session, tier);
}

// Before anything is given out there.
void EngineImpl::mark_gone(const LostSegment& lost) {
  Session* session = find_session(lost.space);
  if (session == nullptr) return;
  const std::size_t tier = terrace::index(lost.tier);
  TERRACE_CHECK(tiers_[tier].level == Level::kDevice);
  Place& place = *session->places[tier];
  place.gone.push_back(lost.extent);
  for (const tier::Extent& free : place.space.free_within(lost.extent)) place.space.retire(free);
  tiers_[tier].loss = lost.why;
}

// Whether nobody can reach what the tensor would have at this offset of its device, in part at least.
bool EngineImpl::is_gone_at(const Session& session, const Tensor& tensor, std::uint64_t offset) const {
  if (tiers_[tensor.device].failed) return true;
  return std::ranges::any_of(session.places[tensor.device]->gone, [&](const tier::Extent& gone) {
    return offset < gone.end() && gone.offset < offset + tensor.extent_bytes();
  });
}

// Whether the tensor's copy in a device is one that nobody can read any more, in part at least. Before the first step
// of a slide is done, all of it is where it was.
bool EngineImpl::is_gone(const Session& session, const Tensor& tensor) const {
  if (!tensor.has(Level::kDevice)) return false;
  if (is_gone_at(session, tensor, tensor.offset[index(Level::kDevice)])) return true;
  return tensor.sliding == Level::kDevice && tensor.slide().bytes > 0 &&
         is_gone_at(session, tensor, tensor.slide().offset);
}

bool EngineImpl::is_shown_where_gone(const Session& session, const Tensor& tensor) const {
  return tensor.published == Level::kDevice && is_gone(session, tensor);
}

// Of a copy that is not published.
void EngineImpl::lose_if_gone(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (!tensor.is_valid(Level::kDevice) || !is_gone(session, tensor)) return;
  lose_copy(tensor, Level::kDevice);
  touch(session, slot);
  if (!tensor.lost || tensor.deleted) return;
  ++tiers_[tensor.device].lost_tensors;
  output_.losses.push_back({static_cast<TierId>(tensor.device), session.id, std::string(name(session, slot))});
}

// What is leased or moves stands for now, and is looked at again when that has ended.
void EngineImpl::give_up_gone(Session& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (session.life != Session::Life::kOpen || !tensor.live() || tensor.deleted || !is_gone(session, tensor)) return;
  withdraw_clean(session, slot);  // it would fail
  const bool published = tensor.published == Level::kDevice;
  const bool at_rest = tensor.idle() && tensor.admission == 0;
  if (published && (!at_rest || !claim(session, slot))) return await_gone(session, slot);
  if (!at_rest) return;
  const bool stays = home_level_ == Level::kDevice || tensor.pinned == Level::kDevice;  // its extent, without its bytes
  if (stays && !tensor.is_valid(Level::kDevice)) return;
  rest(session, slot);
}

void EngineImpl::await_gone(Session& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  show_lent(session, slot, true);
  show_wanted(session, slot);
  session.gone.insert(slot);
  if (leased(session, slot) || !tensor.idle() || tensor.admission != 0) return;
  ++session.events;  // the lease ended a moment ago, and did not ring
  stir(session);
}

void EngineImpl::give_up_ended(Session& session) {
  if (session.gone.empty()) return;
  for (const Slot slot : std::exchange(session.gone, {})) give_up_gone(session, slot);
}

Error EngineImpl::out_of_use(const Session& session, const Admission& admission) const {
  const Tier& tier = tiers_[admission.tier];
  const std::size_t more = admission.slots.size() - 1;
  return {
      ErrorCode::kUnavailable,
      fmt::format("tensor '{}'{} cannot be had in {}, which does not serve: {}", name(session, admission.slots.front()),
                  more == 0 ? "" : fmt::format(" (and {} more)", more), tier.options.name, tier.loss),
      0};
}

// For the sentence that a tensor is lost.
std::string EngineImpl::how_lost(const Tensor& tensor) const {
  const Tier& tier = tiers_[tensor.device];
  return tensor.lost_in_device && !tier.loss.empty() ? fmt::format(" with {} ({})", tier.options.name, tier.loss) : "";
}

}  // namespace terrace::engine
