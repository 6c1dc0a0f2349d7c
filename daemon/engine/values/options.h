// SPDX-License-Identifier: Apache-2.0
// What an engine is made with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/policy/policy.h"
#include "tier/extent.h"

namespace terrace::engine {

struct TierOptions {
  std::string name;  // "device:0", "memory", "block"
  tier::Kind kind{};
  std::uint64_t capacity_bytes = 0;  // a multiple of segment_bytes in mapped tiers
  std::uint64_t segment_bytes = 0;   // unit in which a mapped tier gets memory; a multiple of 2 MiB; 0 for block
  double high_mark = 0.9;            // share of the capacity above which Watch reports pressure
  std::uint64_t identity = 0;  // of the block tier's files, or of a GPU: another daemon's are these only if it is equal
  std::uint64_t write_budget_bytes_per_day = 0;  // block: once it is spent nothing is written ahead of need; 0: none
  bool stitches = false;  // mapped: free pages that lie apart can be shown side by side: tier::MappedTier::stitch()
  bool write_back_early = false;  // device: what is dirty there is written down as soon as a link has time for it
};

// A limit on one configured tenant (Tenant::socket), over all its sessions.
struct QuotaOptions {
  std::uint32_t tenant_socket = 0;
  std::uint64_t home_bytes_max = 0;  // bytes of tensors; 0: no limit
};

// Between tries of what failed: each pause is twice as long as the one before, and none longer than the longest.
struct Pauses {
  Duration first{};
  Duration longest{};
};

struct Options {
  std::vector<TierOptions> tiers;  // fastest first: devices, then at most one memory, then at most one block
  std::vector<QuotaOptions> quotas;
  std::vector<std::uint32_t> weights;  // by Tenant::socket, 1 to kTenantWeightMax; empty: all are 1
  std::vector<std::uint64_t> tenants;  // by Tenant::socket: what each is called over restarts; empty: its number
  std::uint32_t sessions_max = 256;
  std::uint32_t requests_waiting_max = 4096;   // over all sessions; more are kResourceExhausted at once
  std::uint32_t transfers_in_flight_max = 16;  // handed down at a time, per link
  double spare_share = 0.0;                    // part of the home tier kept back for retired regions
  bool former_at_work = false;                 // a daemon that was killed may be at the block tier: see former_ended()
  bool observe = false;                        // say what sessions do: Output::observations
  Duration write_back_period = std::chrono::milliseconds(100);  // between looks for what TierOptions has written early
  Pauses outage_pauses{std::chrono::seconds(1), std::chrono::minutes(1)};  // between tries of a tier without writes
  Pauses retired_pauses{std::chrono::minutes(1), std::chrono::hours(1)};   // between tests of retired regions
  std::function<std::unique_ptr<Policy>()> make_policy = make_lru_policy;  // of a tier that is nobody's home
};

}  // namespace terrace::engine
