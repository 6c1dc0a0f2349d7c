// SPDX-License-Identifier: Apache-2.0
// The policies that a rehearsal can run under.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace terrace::rehearsal {

enum class PolicyKind : std::uint8_t {
  kNextUse,     // the daemon's: learns, plans, and falls back
  kLru,         // demand alone
  kS3Fifo,      // likewise
  kUnforeseen,  // likewise: what kNextUse falls back to
  kDemandMin,   // likewise, with an oracle's knowledge of the next use
  kOracle,      // the daemon's, whose planner is told what will run instead of learning it
};

// Enumerator i is called kPolicyNames[i].
inline constexpr std::array<std::string_view, 6> kPolicyNames = {"next-use",   "lru",        "s3-fifo",
                                                                 "unforeseen", "demand-min", "oracle"};
constexpr std::string_view name(PolicyKind kind) { return kPolicyNames[static_cast<std::size_t>(kind)]; }
std::optional<PolicyKind> policy_of(std::string_view name);

}  // namespace terrace::rehearsal
