// SPDX-License-Identifier: Apache-2.0
// Sessions come and go.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine_impl.h"

namespace terrace::engine {

void EngineImpl::on(const Request& request, const OpenSession& body) {
  if (draining_)
    return answer(request.id, fail(ErrorCode::kUnavailable, "the daemon is draining: it opens no more sessions"));
  if (sessions_.size() + opens_.size() >= options_.sessions_max)
    return answer(request.id, fail(ErrorCode::kResourceExhausted,
                                   fmt::format("{} sessions are open, which is the daemon's bound: close one first",
                                               sessions_.size())));
  if (body.table.size() == 0)
    return answer(request.id, fail(ErrorCode::kInvalidArgument, "a session needs a lease table of at least one slot"));
  auto floors = floors_of(body);
  if (!floors) return answer(request.id, std::unexpected(floors.error()));
  if (!wait_for(request.id, SessionId{}, request.deadline)) return;
  opens_.push_back({request.id, body, std::move(*floors)});
  opens_stirred_ = true;
}

// Bytes by tier: stated ones rounded up to segments, else half the capacity divided by the ranks, rounded down.
Result<std::vector<std::uint64_t>> EngineImpl::floors_of(const OpenSession& open) const {
  std::vector<std::uint64_t> floors(tiers_.size(), 0);
  std::vector<bool> stated(tiers_.size(), false);
  for (const Guarantee& guarantee : open.guarantees) {
    const auto tier = tier_of_place(guarantee.place, false);
    if (!tier) return std::unexpected(tier.error());
    const Tier& at = tiers_[*tier];
    if (stated[*tier])
      return fail(ErrorCode::kInvalidArgument, fmt::format("two guarantees for {}: state one", at.leases.name));
    if (guarantee.bytes > at.options.capacity_bytes)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("a guarantee of {} bytes in {} is more than its capacity of {} bytes", guarantee.bytes,
                              at.leases.name, at.options.capacity_bytes));
    stated[*tier] = true;
    const std::uint64_t segment = at.options.segment_bytes;
    floors[*tier] = (guarantee.bytes + segment - 1) / segment * segment;
  }
  const std::uint64_t ranks = std::max(open.local_world_size, 1u);
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const TierOptions& tier = tiers_[i].options;
    if (!tiers_[i].mapped() || stated[i]) continue;
    floors[i] = tier.capacity_bytes / 2 / ranks / tier.segment_bytes * tier.segment_bytes;
    if (floors[i] == 0 && floors_bytes(i, nullptr) + tier.segment_bytes <= tier.capacity_bytes)
      floors[i] = tier.segment_bytes;
  }
  return floors;
}

void EngineImpl::open_now(RequestId request, const OpenSession& open, const std::vector<std::uint64_t>& floors) {
  const SessionId id{next_session_++};
  auto session = std::make_unique<Session>();
  session->id = id;
  session->tenant = open.tenant;
  session->table = open.table;
  session->label = open.label;
  session->pid = open.pid;
  session->token = open.token;
  session->maps_segments = open.maps_segments;
  session->places.resize(tiers_.size());
  SessionOpened opened{id, {}};
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if (!tiers_[i].mapped()) continue;
    session->places[i] = std::make_unique<Place>(options_.make_policy());
    session->places[i]->floor_bytes = floors[i];
    opened.places.push_back({tiers_[i].place, tiers_[i].options.capacity_bytes, floors[i]});
  }
  if (catalog_ != nullptr) {
    TERRACE_CHECK(!free_records_.empty());  // those that wait to be open count for the bound too
    session->record = *free_records_.begin();
    free_records_.erase(free_records_.begin());
  }
  touch(*sessions_.emplace(id, std::move(session)).first->second);
  answer(request, ReplyBody{std::move(opened)});
}

void EngineImpl::on(const Request& request, const CloseSession&) {
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  if (!wait_for(request.id, request.session, request.deadline, true)) return;
  (*session)->close_request = request.id;
  end_session(**session, {ErrorCode::kCancelled, "the session was closed", 0});
}

void EngineImpl::end_session(Session& session, const Error& why) {
  session.life = Session::Life::kEnding;
  touch(session);
  while (!session.admissions.empty()) fail_admission(session, session.admissions.front(), why);
  session.prefetches.clear();
  for (const Tensor& tensor : session.tensors) {
    const TransferId transfer{tensor.transfer};
    if (tensor.transfer == 0 || !scheduler_.withdraw(transfer)) continue;
    flights_.erase(transfer);
    --session.transfers;
  }
  stir(session);
}

// Nothing of it is under way any more: its bytes are free, its memory leaves with it.
void EngineImpl::finish_session(Session& session) {
  for (Tensor& tensor : session.tensors) {
    if (!tensor.live()) continue;
    for (const Level level : {Level::kDevice, Level::kMemory})
      if (tensor.has(level)) tiers_[tier_index(tensor, level)].used_bytes -= tensor.extent_bytes();
    if (tensor.has(Level::kBlock)) free_home(tensor);
  }
  const SessionId id = session.id;
  if (catalog_ != nullptr) freed_records_.push_back(session.record);
  if (session.close_request) answer(*session.close_request, ReplyBody{Done{}});
  sessions_.erase(id);
  output_.gone.push_back(id);
  for (auto& [other, left] : sessions_)
    for (auto& place : left->places)
      if (place != nullptr) place->add_failed = false;
  opens_stirred_ = true;
  stir_all();
}

}  // namespace terrace::engine
