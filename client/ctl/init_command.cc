// SPDX-License-Identifier: Apache-2.0
#include "ctl/init_command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/bytes.h"
#include "config/parse.h"
#include "proposal/places.h"
#include "proposal/write.h"
#include "topology/machine.h"

namespace terrace::ctl {
namespace {

constexpr const char* kServiceSockets = "/run/terrace";

Result<std::optional<std::uint64_t>> wished_size(const char* option, const std::string& text) {
  if (text.empty()) return std::nullopt;
  const auto bytes = parse_bytes(text);
  if (!bytes) return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", option, bytes.error().message));
  return *bytes;
}

// An empty name is a variable that was not set.
std::string is_named(const std::string& path) { return path.empty() ? "is empty; name a path, or leave it out" : ""; }
std::string is_given(const std::string& size) { return size.empty() ? "is empty; name a size, or leave it out" : ""; }

// What cannot be of the options shows as it does to the daemon.
Result<void> check(const std::string& text) {
  const std::string usual = config::default_runtime_dir();
  auto parsed =
      config::parse(text, "the configuration that these options give", usual.empty() ? kServiceSockets : usual);
  if (!parsed) return std::unexpected(parsed.error());
  return {};
}

}  // namespace

InitCommand::InitCommand(CLI::App& command) : command_(command) {
  command.add_option("--output", output_, "Write it into this file (default: to standard output)")->check(is_named);
  command.add_flag("--force", force_, "Replace the file if it is there");
  command.add_option("--memory", memory_, "Capacity of the memory tier, such as 64GiB (default: half of the memory)")
      ->check(is_given);
  command
      .add_option("--block", block_,
                  "A folder for a block file, or a formatted block device; once for each drive (default: the local "
                  "drives that are found)")
      ->check(is_named);
  command
      .add_option("--block-capacity", block_capacity_,
                  "Capacity of the block tier, such as 2TiB (default: 80 % of what is free)")
      ->check(is_given);
  command.add_option("--sockets", sockets_, "The folder of the sockets (default: the daemon's)")->check(is_named);
  command.add_option("--metrics", metrics_, "HOST:PORT of /metrics; \"\" for none (default: 127.0.0.1:9464)");
}

Result<proposal::Wishes> InitCommand::wishes() const {
  proposal::Wishes wishes;
  const auto memory = wished_size("--memory", memory_);
  if (!memory) return std::unexpected(memory.error());
  const auto block = wished_size("--block-capacity", block_capacity_);
  if (!block) return std::unexpected(block.error());
  wishes.memory_bytes = *memory;
  wishes.block_bytes = *block;
  for (const std::string& named : block_) {
    auto place = proposal::place_at(named);
    if (!place) return fail(place.error().code, "--block: " + place.error().message, place.error().system_error);
    wishes.places.push_back(std::move(*place));
  }
  if (!sockets_.empty()) wishes.sockets_folder = std::filesystem::absolute(sockets_).lexically_normal().string();
  if (command_.count("--metrics") != 0) wishes.metrics_address = metrics_;
  return wishes;
}

Result<std::string> InitCommand::run(bool json) const {
  const auto wished = wishes();
  if (!wished) return std::unexpected(wished.error());
  const auto machine = topology::discover();
  if (!machine) return std::unexpected(machine.error());
  const auto proposed = proposal::propose(*machine, proposal::has_nvidia_driver(), proposal::find_places(), *wished);
  if (!proposed) return std::unexpected(proposed.error());
  const std::string text = proposal::to_toml(*proposed);
  if (const auto good = check(text); !good) return std::unexpected(good.error());
  if (!output_.empty())
    if (const auto written = proposal::write_file(output_, text, force_); !written)
      return std::unexpected(written.error());
  if (json) {
    const auto output = output_.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(output_);
    return nlohmann::ordered_json{{"output", output}, {"configuration", text}}.dump(2) + '\n';
  }
  return output_.empty() ? text : fmt::format("{0} is written; next: terracectl doctor --config {0}\n", output_);
}

}  // namespace terrace::ctl
