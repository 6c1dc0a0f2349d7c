// SPDX-License-Identifier: Apache-2.0
// Sessions are opened once their guarantees are backed.
#include "engine/opening.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace terrace::engine {
namespace {

// Where tenants have weights, more or less of it: two of weights 1 and 3 have a quarter of the capacity, and the rest.
std::uint64_t half_of(std::uint64_t capacity_bytes, const std::vector<std::uint32_t>& weights, const Tenant& tenant) {
  if (std::ranges::adjacent_find(weights, std::not_equal_to()) == weights.end()) return capacity_bytes / 2;
  const std::uint64_t sum = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  return capacity_bytes / sum * weight_of(weights, tenant);
}

}  // namespace

// Bytes by tier: stated ones rounded up to segments, else half the capacity, by the tenant's weight, divided by the
// ranks, rounded down; none where nothing is given out any more.
Result<std::vector<std::uint64_t>> Opening::floors_of(const OpenSession& open) const {
  std::vector<std::uint64_t> floors(tiers_.size(), 0);
  std::vector<bool> stated(tiers_.size(), false);
  for (const Guarantee& guarantee : open.guarantees) {
    const auto tier = tiers_.tier_of_place(guarantee.place, false);
    if (!tier) return std::unexpected(tier.error());
    const Tier& at = tiers_[*tier];
    if (stated[index(*tier)])
      return fail(ErrorCode::kInvalidArgument, fmt::format("two guarantees for {}: state one", at.leases.name));
    if (guarantee.bytes > at.options.capacity_bytes)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("a guarantee of {} bytes in {} is more than its capacity of {} bytes", guarantee.bytes,
                              at.leases.name, at.options.capacity_bytes));
    if (at.failed && guarantee.bytes > 0)
      return fail(ErrorCode::kUnavailable,
                  fmt::format("a guarantee of {} bytes in {} cannot be had, which does not serve ({}): open without it",
                              guarantee.bytes, at.leases.name, at.loss));
    stated[index(*tier)] = true;
    const std::uint64_t segment = at.options.segment_bytes;
    floors[index(*tier)] = (guarantee.bytes + segment - 1) / segment * segment;
  }
  const std::uint64_t ranks = std::max(open.local_world_size, 1u);
  for (const TierId i : tiers_.ids()) {
    const TierOptions& tier = tiers_[i].options;
    if (!tiers_[i].mapped() || tiers_[i].failed || stated[index(i)]) continue;
    floors[index(i)] =
        half_of(tier.capacity_bytes, options_.weights, open.tenant) / ranks / tier.segment_bytes * tier.segment_bytes;
    if (floors[index(i)] == 0 && budget_.floors_bytes(i, nullptr) + tier.segment_bytes <= tier.capacity_bytes)
      floors[index(i)] = tier.segment_bytes;
  }
  return floors;
}

std::unique_ptr<Policy> Opening::policy_for(TierId tier) const {
  return tiers_[tier].level == tiers_.home_level ? make_home_policy() : options_.make_policy();
}

void Opening::open_now(RequestId request, const OpenSession& open, const std::vector<std::uint64_t>& floors) {
  if (open.share)  // somebody else may have created it meanwhile
    if (const auto good = check_share(open); !good) return requests_.answer(request, std::unexpected(good.error()));
  const SessionId id{ledger_.next_session++};
  auto made = std::make_unique<Session>();
  made->id = id;
  made->tenant = open.tenant;
  made->places = Places(tiers_.size());
  for (const TierId i : tiers_.ids()) {
    if (!tiers_[i].mapped()) continue;
    made->places[i] = std::make_unique<Place>(policy_for(i));
    made->places[i]->floor_bytes = floors[index(i)];
  }
  made->record = records_.take_record();
  Session& session = *made;
  registry_.all.emplace(id, std::move(made));
  records_.touch(session);
  if (open.share) {
    session.share = open.share->name;
    return requests_.answer(request, ReplyBody{opened(session, join(session, open))});
  }
  session.members.push_back(member_of(open, id));
  session.members.front().record = session.record;
  requests_.answer(request, ReplyBody{opened(session, session.members.front())});
}

void Opening::join_now(RequestId request, const OpenSession& open) {
  Session& share = *find_share(open.tenant, open.share->name);
  if (open.table.size() != share.members.front().table.size())
    return requests_.answer(
        request, fail(ErrorCode::kInvalidArgument,
                      fmt::format("a table of {} slots, where those of share '{}' have {}", open.table.size(),
                                  share.share, share.members.front().table.size())));
  requests_.answer(request, ReplyBody{opened(share, join(share, open))});
}

SessionOpened Opening::opened(const Session& session, const Member& member) const {
  SessionOpened opened{.session = member.id, .space = session.id, .writes = member.writes, .places = {}};
  for (const TierId i : tiers_.ids())
    if (tiers_[i].mapped())
      opened.places.push_back({tiers_[i].place, tiers_[i].options.capacity_bytes, session.places[i]->floor_bytes});
  return opened;
}

// One after the other: the first waits until its floors are backed.
void Opening::pump_opens() {
  while (!budget_.opens.empty() && budget_.can_open(budget_.opens.front())) {
    const PendingOpen open = std::move(budget_.opens.front());
    budget_.opens.erase(budget_.opens.begin());
    open_now(open.request, open.open, open.floors);
  }
  if (budget_.opens.empty())
    budget_.unfence_all();
  else
    budget_.fence_for(budget_.opens.front());
}

// Nobody waits for memory there, and nobody is asked to give any back.
void Opening::give_up_guarantees(TierId tier) {
  for (PendingOpen& open : budget_.opens) open.floors[index(tier)] = 0;
  std::erase_if(budget_.opens, [&](const PendingOpen& open) {
    const auto floors = floors_of(open.open);
    if (!floors) requests_.answer(open.request, std::unexpected(floors.error()));
    return !floors.has_value();
  });
  for (auto& [id, session] : registry_.all)
    if (session->places[tier]->fence != kNoFence) budget_.unfence(*session, tier);
}

}  // namespace terrace::engine
