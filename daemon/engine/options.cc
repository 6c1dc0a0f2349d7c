// SPDX-License-Identifier: Apache-2.0
// How an engine is made: what its options must be, and what follows from them.
#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "engine/engine.h"

namespace terrace::engine {
namespace {

Result<void> check_tier(const TierOptions& tier) {
  const auto bad = [&](std::string what) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("tier '{}': {}", tier.name, what));
  };
  if (tier.capacity_bytes == 0 || tier.capacity_bytes % kPageBytes != 0)
    return bad(fmt::format("capacity {} is not a positive multiple of 4096", tier.capacity_bytes));
  if (tier.kind != tier::Kind::kBlock) {
    if (tier.segment_bytes == 0 || tier.segment_bytes % (2 * kMiB) != 0)
      return bad(fmt::format("segment size {} is not a positive multiple of 2 MiB", tier.segment_bytes));
    if (tier.capacity_bytes % tier.segment_bytes != 0)
      return bad(
          fmt::format("capacity {} is not a multiple of the segment size {}", tier.capacity_bytes, tier.segment_bytes));
  }
  if (tier.kind != tier::Kind::kBlock && tier.write_budget_bytes_per_day != 0)
    return bad("a write budget: only a block tier has one");
  if (tier.kind != tier::Kind::kDevice && tier.write_back_early)
    return bad("early write-back: only a device's memory may be lost");
  if (!(tier.high_mark > 0 && tier.high_mark <= 1))
    return bad(fmt::format("high mark {} is not in (0, 1]", tier.high_mark));
  return {};
}

Result<void> check_options(const Options& options) {
  const auto bad = [](std::string what) { return fail(ErrorCode::kInvalidArgument, std::move(what)); };
  if (options.tiers.empty()) return bad("no tiers: at least one is needed");
  std::array<std::size_t, 3> kinds{};
  for (std::size_t i = 0; i < options.tiers.size(); ++i) {
    if (const auto good = check_tier(options.tiers[i]); !good) return good;
    ++kinds[static_cast<std::size_t>(options.tiers[i].kind)];
    if (i > 0 && options.tiers[i].kind < options.tiers[i - 1].kind)
      return bad("tiers out of order: devices first, then memory, then block");
  }
  if (kinds[1] > 1 || kinds[2] > 1) return bad("at most one memory tier and one block tier");
  if (kinds[0] + kinds[1] == 0) return bad("a block tier alone cannot be mapped: a memory or device tier is needed");
  if (kinds[0] >= shm::kPlacesMax) return bad("at most eight device tiers");
  if (kinds[0] > 1 && kinds[1] + kinds[2] == 0) return bad("several devices need a memory or block tier beneath them");
  if (!(options.spare_share >= 0 && options.spare_share < 1)) return bad("spare share is not in [0, 1)");
  if (options.transfers_in_flight_max == 0) return bad("transfers in flight: at least one");
  if (!options.make_policy) return bad("no policy");
  if (options.write_back_period <= Duration::zero())
    return bad("the time between looks for write-backs is not positive");
  for (const Pauses& pauses : {options.outage_pauses, options.retired_pauses})
    if (pauses.first <= Duration::zero() || pauses.longest < pauses.first)
      return bad("pauses between tries: the first is positive, and the longest no shorter");
  return {};
}

}  // namespace

Result<void> Engine::check(const Options& options, const CatalogShape& shape) {
  if (auto good = check_options(options); !good) return good;
  for (const std::uint32_t weight : options.weights)
    if (weight == 0 || weight > kTenantWeightMax)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a tenant's weight is {}: give 1 to {}", weight, kTenantWeightMax));
  if (shape.sessions_max < options.sessions_max)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} sessions, and the catalog holds {}", options.sessions_max, shape.sessions_max));
  return {};
}

std::optional<std::uint32_t> tenant_socket(const Options& options, const SessionRecord& record) {
  if (options.tenants.empty()) return static_cast<std::uint32_t>(record.tenant);
  const auto found = std::ranges::find(options.tenants, record.tenant);
  if (found == options.tenants.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - options.tenants.begin());
}

TierRecord tier_record(const TierOptions& options) {
  return {.kind = static_cast<std::uint32_t>(options.kind) + 1,
          .capacity_bytes = options.capacity_bytes,
          .segment_bytes = options.segment_bytes,
          .identity = options.identity};
}

}  // namespace terrace::engine
