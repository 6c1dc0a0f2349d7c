// SPDX-License-Identifier: Apache-2.0
// The configuration, and where the sockets are to lie.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "config/resolve.h"
#include "doctor/checks.h"
#include "tier/block/ownership.h"
#include "topology/block_path.h"

namespace terrace::doctor {
namespace {

std::vector<std::string> socket_paths(const config::Config& config) {
  std::vector<std::string> paths;
  for (const config::TenantConfig& tenant : config.tenants) {
    paths.push_back(tenant.data_socket);
    paths.push_back(tenant.grpc_socket);
  }
  paths.push_back(config.sockets.admin);
  std::erase(paths, "");  // refused with the configuration
  return paths;
}

// Whether there is a configuration, and nothing of it is known.
bool is_unread(const Node& node) { return !node.config_file.empty() && node.config.source.empty(); }

bool may_too_little(const Node& node) {
  if (!node.silent_paths.empty()) return false;
  if (is_unread(node) && is_for_want_of_rights(node, *node.refusal)) return true;
  const auto refuses = [&node](const Result<void>& tried) {
    return !tried && is_for_want_of_rights(node, tried.error());
  };
  for (const std::string& path : socket_paths(node.config))
    if (refuses(config::check_socket(path))) return true;
  const config::TierConfig* block = block_tier(node.config);
  if (block == nullptr) return false;
  return std::ranges::any_of(block->paths, [&](const std::string& path) {
    if (refuses(tier::check_file(path))) return true;
    const auto looked = topology::inspect_block_path(path);
    return !looked && is_for_want_of_rights(node, looked.error());
  });
}

std::string check_command(const Node& node) {
  if (!node.silent_paths.empty()) return kResetDrive;
  return node.config_file.empty() ? "terraced --check-config"
                                  : fmt::format("terraced --check-config --config {}", node.config_file);
}

}  // namespace

Findings check_config(const Node& node) {
  if (node.refusal && may_too_little(node))
    return {warning(fmt::format("this user may not do all that the daemon's user does, so that it is not known whether "
                                "it would start: {}",
                                node.refusal->message),
                    with_more_rights(node))};
  if (node.refusal)
    return {failure(fmt::format("the daemon would not start: {}", node.refusal->message), check_command(node))};
  if (node.config_file.empty())
    return {not_applicable(
        "there is no configuration, so that the other checks look at what the daemon does without one: a quarter of "
        "the memory, and no block tier")};
  if (!node.config.warnings.empty())
    return {
        warning(fmt::format("the daemon would start, with these warnings: {}", fmt::join(node.config.warnings, "; ")),
                check_command(node))};
  return {ok(fmt::format("the daemon would start with {}", node.config_file))};
}

Findings check_sockets(const Node& node) {
  Findings found;
  const std::vector<std::string> paths = socket_paths(node.config);
  if (paths.empty() && is_unread(node))
    return {not_applicable("where they are to lie is unknown, since the configuration is refused")};
  if (paths.empty())
    return {failure("no socket has a path: neither a configuration nor XDG_RUNTIME_DIR names a folder for them",
                    "export XDG_RUNTIME_DIR=/run/user/$(id -u)")};
  for (const std::string& path : paths) {
    const auto tried = config::check_socket(path);
    if (tried) continue;
    if (is_for_want_of_rights(node, tried.error())) {
      found.push_back(warning(
          fmt::format("this user may not make it, and the daemon's user perhaps may: {}", tried.error().message),
          with_more_rights(node), path));
    } else {
      const bool is_taken = tried.error().code == ErrorCode::kFailedPrecondition;
      found.push_back(failure(fmt::format("the daemon cannot listen there: {}", tried.error().message),
                              is_taken ? fmt::format("ls -l {}; remove it, or name another path", path)
                                       : "name a path under [sockets] in a folder that can be written",
                              path));
    }
  }
  if (found.empty()) found.push_back(ok(fmt::format("{} can be made", fmt::join(paths, ", "))));
  return found;
}

}  // namespace terrace::doctor
