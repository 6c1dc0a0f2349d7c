// SPDX-License-Identifier: Apache-2.0
#include "doctor/node.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "config/parse.h"
#include "config/resolve.h"
#include "doctor/block_trial.h"
#include "doctor/patience.h"
#include "tier/block/raw_device.h"
#include "topology/block_path.h"
#include "topology/cuda_probe.h"
#include "topology/report.h"

namespace terrace::doctor {
namespace {

// As a start of the daemon does it: resolved, and then set against what the machine can do.
Result<config::Config> started(config::Draft draft, const topology::Machine& machine,
                               const topology::Sources& sources) {
  auto resolved = config::resolve(std::move(draft), machine);
  if (!resolved) return resolved;
  const auto taken = config::taken(*resolved, sources);
  if (!taken) return std::unexpected(taken.error());
  const auto usable = topology::require(machine, *taken, resolved->strict);
  if (!usable) return std::unexpected(usable.error());
  return resolved;
}

// A start would wait for such a drive without an end, and so would whoever looks at it.
std::vector<std::string> silent_paths(const config::Config& config) {
  std::vector<std::string> silent;
  const config::TierConfig* block = block_tier(config);
  if (block == nullptr) return silent;
  for (const std::string& path : block->paths) {
    const bool answers = ends_within(kDrivePatience, [&path] {
      (void)topology::inspect_block_path(path);
      if (!tier::is_block_device(path)) (void)try_block(std::filesystem::path(path).parent_path().string());
    });
    if (!answers) silent.push_back(path);
  }
  return silent;
}

}  // namespace

Result<Node> look_at_node(const std::string& config_file, const topology::Sources& sources) {
  auto machine = topology::discover(sources);
  if (!machine) return std::unexpected(machine.error());
  Node node{.root = sources.root,
            .machine = std::move(*machine),
            .config_file = config_file,
            .config = {},
            .limits = {},
            .refusal = {},
            .silent_paths = {},
            .is_root = ::geteuid() == 0};
  auto draft = config_file.empty() ? config::without_file() : config::load(config_file);
  if (!draft) {
    node.refusal = draft.error();
    return node;
  }
  node.config = draft->config;
  node.limits = draft->config.limits;
  node.silent_paths = silent_paths(node.config);
  if (!node.silent_paths.empty()) {
    node.refusal =
        Error{ErrorCode::kUnavailable, fmt::format("{}: {}", fmt::join(node.silent_paths, ", "), kDoesNotAnswer), 0};
    return node;
  }
  if (config::asks_for_gpus(node.config))
    node.machine.cuda = topology::probe_cuda(
        [&node](int ordinal, std::uint64_t) { return config::asks_for_gpu(node.config, ordinal); });
  auto resolved = started(std::move(*draft), node.machine, sources);
  if (resolved) {
    node.config = std::move(*resolved);
  } else {
    node.refusal = resolved.error();
  }
  return node;
}

bool is_for_want_of_rights(const Node& node, const Error& error) {
  return !node.is_root && (error.system_error == EACCES || error.system_error == EPERM);
}

bool is_silent(const Node& node, const std::string& path) {
  return std::ranges::find(node.silent_paths, path) != node.silent_paths.end();
}

std::uint64_t memory_tiers_bytes(const config::Config& config) {
  std::uint64_t bytes = 0;
  for (const config::TierConfig& tier : config.tiers) bytes += tier.takes_memory() ? tier.capacity.bytes : 0;
  return bytes;
}

const config::TierConfig* block_tier(const config::Config& config) {
  const auto found = std::ranges::find(config.tiers, config::TierKind::kBlock, &config::TierConfig::kind);
  return found == config.tiers.end() ? nullptr : &*found;
}

std::string with_more_rights(const Node& node) {
  const std::string file = node.config_file.empty() ? "" : fmt::format(" --config {}", node.config_file);
  return "sudo terracectl doctor" + file;
}

}  // namespace terrace::doctor
