// SPDX-License-Identifier: Apache-2.0
// What the checks look at: a machine, and the configuration that a daemon is to have there.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "terrace/error.h"
#include "topology/machine.h"

namespace terrace::doctor {

struct Node {
  std::string root;  // stands before /proc, /sys, /dev and /run
  topology::Machine machine;
  std::string config_file;       // empty: there is none, and the configuration is what the daemon does without
  config::Config config;         // resolved; where it was refused, as far as it could be read
  config::Limits limits;         // as they were written: resolving may lower them
  std::optional<Error> refusal;  // why a daemon would not start with it
  std::vector<std::string> silent_paths{};  // of the block tier: their drives do not answer, and are touched no more
  bool is_root = false;                     // whether this process may do everything
};

// How long a drive may take to have a block written and read back.
inline constexpr std::chrono::seconds kDrivePatience{30};

// Looks at the machine and loads the configuration, as a start of the daemon does; takes nothing. `config_file` empty:
// what the daemon does without one. Errors are those of topology::discover(): a configuration that is refused is none.
Result<Node> look_at_node(const std::string& config_file, const topology::Sources& sources = {});

// Whether a refusal comes of this user's rights, so that the daemon's user may well have what this one has not.
bool is_for_want_of_rights(const Node& node, const Error& error);

// What is said of a path whose drive does not answer, and what mends it.
inline constexpr const char* kResetDrive = "dmesg | tail; then reset or replace the drive";
inline constexpr const char* kDoesNotAnswer = "its drive does not answer";

// Whether the drive of a path of the block tier does not answer.
bool is_silent(const Node& node, const std::string& path);

// What the tiers that lie in the machine's memory come to; 0 where that is not known, since the configuration was
// refused.
std::uint64_t memory_tiers_bytes(const config::Config& config);

// What is said where it is not known what tiers there are, or what they come to.
inline constexpr const char* kTiersUnknown = "the tiers are unknown, since the configuration is refused";

// The configuration's block tier; none: null.
const config::TierConfig* block_tier(const config::Config& config);

// "terracectl doctor" as another user who may more, with the same configuration.
std::string with_more_rights(const Node& node);

}  // namespace terrace::doctor
