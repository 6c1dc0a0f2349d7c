// SPDX-License-Identifier: Apache-2.0
// Sessions come and go.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/engine_impl.h"

namespace terrace::engine {
namespace {

// Where tenants have weights, more or less of it: two of weights 1 and 3 have a quarter of the capacity, and the rest.
std::uint64_t half_of(std::uint64_t capacity_bytes, const std::vector<std::uint32_t>& weights, const Tenant& tenant) {
  if (std::ranges::adjacent_find(weights, std::not_equal_to()) == weights.end()) return capacity_bytes / 2;
  const std::uint64_t sum = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  return capacity_bytes / sum * weight_of(weights, tenant);
}

}  // namespace

void EngineImpl::on(const Request& request, const OpenSession& body) {
  if (draining_)
    return answer(request.id, fail(ErrorCode::kUnavailable, "the daemon is draining: it opens no more sessions"));
  const bool joins = body.share && !body.share->create;
  if (records_used() + (body.share && !joins ? 2 : 1) > options_.sessions_max)
    return answer(request.id,
                  fail(ErrorCode::kResourceExhausted,
                       fmt::format("{} sessions are open, which is the daemon's bound: close one first (a share counts "
                                   "as one more than its sessions)",
                                   records_used())));
  if (body.table.size() == 0)
    return answer(request.id, fail(ErrorCode::kInvalidArgument, "a session needs a lease table of at least one slot"));
  if (const std::size_t most = catalog_->shape().tensors_per_session_max; body.table.size() > most)
    return answer(request.id,
                  fail(ErrorCode::kInvalidArgument,
                       fmt::format("a lease table of {} slots, and the catalog holds {}", body.table.size(), most)));
  if (body.share)
    if (const auto good = check_share(body); !good) return answer(request.id, std::unexpected(good.error()));
  if (joins) return join_now(request.id, body);
  auto floors = floors_of(body);
  if (!floors) return answer(request.id, std::unexpected(floors.error()));
  if (!wait_for(request.id, SessionId{}, request.deadline)) return;
  opens_.push_back({request.id, body, std::move(*floors)});
  opens_stirred_ = true;
}

// Bytes by tier: stated ones rounded up to segments, else half the capacity, by the tenant's weight, divided by the
// ranks, rounded down; none where nothing is given out any more.
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
    if (at.failed && guarantee.bytes > 0)
      return fail(ErrorCode::kUnavailable,
                  fmt::format("a guarantee of {} bytes in {} cannot be had, which does not serve ({}): open without it",
                              guarantee.bytes, at.leases.name, at.loss));
    stated[*tier] = true;
    const std::uint64_t segment = at.options.segment_bytes;
    floors[*tier] = (guarantee.bytes + segment - 1) / segment * segment;
  }
  const std::uint64_t ranks = std::max(open.local_world_size, 1u);
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const TierOptions& tier = tiers_[i].options;
    if (!tiers_[i].mapped() || tiers_[i].failed || stated[i]) continue;
    floors[i] =
        half_of(tier.capacity_bytes, options_.weights, open.tenant) / ranks / tier.segment_bytes * tier.segment_bytes;
    if (floors[i] == 0 && floors_bytes(i, nullptr) + tier.segment_bytes <= tier.capacity_bytes)
      floors[i] = tier.segment_bytes;
  }
  return floors;
}

std::unique_ptr<Policy> EngineImpl::policy_for(std::size_t tier) const {
  return tiers_[tier].level == home_level_ ? make_home_policy() : options_.make_policy();
}

void EngineImpl::open_now(RequestId request, const OpenSession& open, const std::vector<std::uint64_t>& floors) {
  if (open.share)  // somebody else may have created it meanwhile
    if (const auto good = check_share(open); !good) return answer(request, std::unexpected(good.error()));
  const SessionId id{next_session_++};
  auto made = std::make_unique<Session>();
  made->id = id;
  made->tenant = open.tenant;
  made->places.resize(tiers_.size());
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    if (!tiers_[i].mapped()) continue;
    made->places[i] = std::make_unique<Place>(policy_for(i));
    made->places[i]->floor_bytes = floors[i];
  }
  made->record = take_record();
  Session& session = *sessions_.emplace(id, std::move(made)).first->second;
  touch(session);
  if (open.share) {
    session.share = open.share->name;
    return answer(request, ReplyBody{opened(session, join(session, open))});
  }
  session.members.push_back(member_of(open, id));
  session.members.front().record = session.record;
  answer(request, ReplyBody{opened(session, session.members.front())});
}

void EngineImpl::join_now(RequestId request, const OpenSession& open) {
  Session& share = *find_share(open.tenant, open.share->name);
  if (open.table.size() != share.members.front().table.size())
    return answer(request, fail(ErrorCode::kInvalidArgument,
                                fmt::format("a table of {} slots, where those of share '{}' have {}", open.table.size(),
                                            share.share, share.members.front().table.size())));
  answer(request, ReplyBody{opened(share, join(share, open))});
}

SessionOpened EngineImpl::opened(const Session& session, const Member& member) const {
  SessionOpened opened{.session = member.id, .space = session.id, .writes = member.writes, .places = {}};
  for (std::size_t i = 0; i < tiers_.size(); ++i)
    if (tiers_[i].mapped())
      opened.places.push_back({tiers_[i].place, tiers_[i].options.capacity_bytes, session.places[i]->floor_bytes});
  return opened;
}

void EngineImpl::on(const Request& request, const CloseSession&) {
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  if (!wait_for(request.id, request.session, request.deadline, true)) return;
  (*session)->find_member(request.session)->close_request = request.id;
  leave(**session, request.session, {ErrorCode::kCancelled, "the session was closed", 0});
}

void EngineImpl::end_session(Session& session, const Error& why) {
  session.life = Session::Life::kEnding;
  touch(session);
  while (!session.admissions.empty()) fail_admission(session, session.admissions.front(), why);
  session.prefetches.clear();
  for (const Tensor& tensor : session.tensors.all()) {
    const TransferId transfer{tensor.transfer};
    if (tensor.transfer == 0 || !scheduler_.withdraw(transfer)) continue;
    flights_.take(transfer);
    --session.transfers;
  }
  stir(session);
}

// Nothing of it is under way any more: its bytes are free, its memory leaves with it.
void EngineImpl::finish_session(Session& session) {
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    Tensor& tensor = session.at(Slot{at});
    if (!tensor.live()) continue;
    free_text(session, Slot{at});
    for (const Level level : {Level::kDevice, Level::kMemory})
      if (tensor.has(level)) tiers_[tier_index(tensor, level)].used_bytes -= tensor.extent_bytes();
    if (tensor.has(Level::kBlock)) free_home(tensor);
  }
  for (const auto& place : session.places)
    if (place != nullptr)
      for (const auto& [offset, seam] : place->seams) forget_records(session, seam);
  const SessionId id = session.id;
  freed_records_.push_back(session.record);
  for (const Member& member : session.members) {
    if (member.close_request) answer(*member.close_request, ReplyBody{Done{}});
    if (member.id == id) continue;
    freed_records_.push_back(member.record);
    part_of_.erase(member.id);
    output_.gone.push_back(member.id);
  }
  std::ranges::replace(stirred_, &session, nullptr);
  sessions_.erase(id);
  output_.gone.push_back(id);
  for (auto& [other, left] : sessions_)
    for (auto& place : left->places)
      if (place != nullptr) place->add_failed = false;
  opens_stirred_ = true;
  stir_all();
}

}  // namespace terrace::engine
