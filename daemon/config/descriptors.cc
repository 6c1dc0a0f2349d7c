// SPDX-License-Identifier: Apache-2.0
// How many descriptors the daemon takes, and how many connections it can hold with those that it may have.
#include <fmt/format.h>

#include <algorithm>

#include "config/capacity.h"
#include "config/resolve.h"
#include "config/resolve_parts.h"

namespace terrace::config {
namespace {

// Standard output, rings, sockets, locks, eventfds, gRPC's and the exporter's own; twice what was counted.
constexpr std::uint64_t kOwn = 64;
constexpr std::uint64_t kOfConnection = 3;  // itself, and its process; over gRPC, a pair of sockets to gRPC
constexpr std::uint64_t kOfSession = 2;     // beside its connection's: its region and its doorbell

// What the tiers take: a descriptor for each segment, and for each block file.
std::uint64_t of_tiers(const Config& config) {
  std::uint64_t count = 0;
  for (const TierConfig& tier : config.tiers) {
    const std::uint64_t bytes = tier.capacity.bytes;
    count += tier.kind == TierKind::kBlock ? tier.paths.size() : bytes / segment_bytes(bytes);
  }
  return count;
}

std::uint64_t of_clients(const Limits& limits) {
  return kOfConnection * limits.connections_max + kOfSession * std::min(limits.sessions_max, limits.connections_max);
}

}  // namespace

std::uint64_t descriptors_at_most(const Config& config) { return kOwn + of_tiers(config) + of_clients(config.limits); }

void fit_connections(Config& config, std::uint64_t open_files_max, Findings& findings) {
  if (!findings.problems().none()) return;  // what the tiers come to is not known
  const Limits& limits = config.limits;
  const std::uint64_t own = kOwn + of_tiers(config);
  const std::uint64_t all_sessions = (kOfConnection + kOfSession) * limits.sessions_max;
  const std::uint64_t left = open_files_max - std::min(open_files_max, own);
  const std::uint64_t possible = left < all_sessions ? left / (kOfConnection + kOfSession)
                                                     : (left - kOfSession * limits.sessions_max) / kOfConnection;
  if (possible >= limits.connections_max) return;
  const std::string budget = fmt::format(
      "the daemon may have {} descriptors and takes {} itself; the {} connections of limits.connections_max, with {} "
      "sessions among them, take {} more",
      open_files_max, own, limits.connections_max, std::min(limits.sessions_max, limits.connections_max),
      of_clients(limits));
  const char* cure = "raise the limit (LimitNOFILE= in the unit, ulimit -n)";
  if (possible == 0) return findings.complain(config.origin, "limits", fmt::format("{}; {}", budget, cure));
  findings.warn(fmt::format("{}, so that {} connections are let in; {}", budget, possible, cure));
  config.limits.connections_max = static_cast<std::uint32_t>(possible);
}

}  // namespace terrace::config
