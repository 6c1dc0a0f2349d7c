// SPDX-License-Identifier: Apache-2.0
#include "bench/command_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "bench/folder_check.h"
#include "bench/leftovers.h"
#include "bench/neighbours.h"

namespace terrace::bench {

CommandOptions::CommandOptions(CLI::App& app) {
  settings_.disk = ".";
  app.add_option("--dir", settings_.disk, "Folder on the disk for block files; what is made there is removed")
      ->capture_default_str();
  app.add_option("--terraced", settings_.terraced, "The daemon to measure (default: the one beside this program)");
  app.add_flag("--quick", settings_.quick, "Measure links with less data, in less time: the speeds say little");
  app.add_flag("--force", force_, "Measure beside a loaded daemon, or on a busy machine");
}

Result<Settings> CommandOptions::settings(std::uint64_t disk_bytes) {
  settings_.disk_bytes_max = disk_bytes;
  if (const auto ready = prepare(settings_); !ready) return std::unexpected(ready.error());
  if (const std::string lack = cannot_take(settings_.disk, disk_bytes); !lack.empty())
    return fail(ErrorCode::kResourceExhausted, lack);
  if (const std::string lack = cannot_hold_block_files(settings_.disk); !lack.empty())
    return fail(ErrorCode::kFailedPrecondition, lack);
  if (const auto reasons = too_busy(settings_, force_); !reasons.empty())
    return fail(ErrorCode::kUnavailable, fmt::format("{}", fmt::join(reasons, "; ")));
  return settings_;
}

Result<void> prepare(Settings& settings) {
  std::error_code error;
  const auto disk = std::filesystem::absolute(settings.disk, error);  // a daemon takes nothing else
  if (error)
    return fail(ErrorCode::kNotFound,
                fmt::format("{} is no folder to measure in: {}", settings.disk.string(), error.message()));
  settings.disk = disk;
  const auto temporary = temporary_folder();
  if (!temporary) return std::unexpected(temporary.error());
  remove_stale_folders(*temporary);
  remove_stale_folders(settings.disk);
  auto terraced = find_terraced(settings.terraced);
  if (!terraced) return std::unexpected(terraced.error());
  settings.terraced = std::move(*terraced);
  return {};
}

std::vector<std::string> too_busy(const Settings& settings, bool force) {
  auto seen = neighbours_at_work();
  for (const auto& folder : folders_in_use(settings.disk))
    seen.push_back(fmt::format("another benchmark runs on this disk: {} is its", folder.string()));
  if (!force) {
    if (!seen.empty())
      seen.emplace_back(
          "what is measured beside that says little: wait, stop it, or measure all the same with --force");
    return seen;
  }
  for (const std::string& what : seen) tell("terrace-bench: measured all the same: " + what);
  return {};
}

int refuse(const Error& error) {
  tell("terrace-bench: " + error.message);
  return 1;
}

}  // namespace terrace::bench
