// SPDX-License-Identifier: Apache-2.0
#include "ctl/plan_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/bytes.h"
#include "ctl/plan_views.h"
#include "picture/picture.h"
#include "workload/node_file.h"

namespace terrace::ctl {
namespace {

constexpr double kMost = 1e6;
constexpr double kLeast = 1e-3;

// As CLI::Range, which takes what is not a number.
std::string in_range(const std::string& given) {
  double number = 0;
  const bool is_right = CLI::detail::lexical_cast(given, number) && number >= kLeast && number <= kMost;
  return is_right ? std::string() : fmt::format("'{}' is not a number from {} to {}", given, kLeast, kMost);
}

constexpr std::uint64_t kSizeMin = 1'000'000;  // less is a number whose unit was left out

Result<std::uint64_t> size(const char* option, const std::string& text) {
  auto bytes = parse_bytes(text);
  if (!bytes) return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", option, bytes.error().message));
  if (*bytes == 0)
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: must be above 0, such as \"1TB\"", option));
  if (*bytes < kSizeMin)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} has {} bytes: give it a unit, such as \"512GB\"", option, text, *bytes));
  return bytes;
}

// On a terminal alone; the next line written goes over it.
void show_progress(std::string_view what) {
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[Klooking at {}\r", what);
}

}  // namespace

PlanCommand::PlanCommand(CLI::App& command) : recipe_(command), python_(picture::default_python()) {
  command
      .add_option("--node", node_,
                  "a configuration with link speeds, or a name from docs/reference/workloads.md: dgx-h100, ...")
      ->required();
  command.add_option("--dram", dram_, "sizes of a node's DRAM to look at, such as 512GB,1TB (default: common ones)")
      ->delimiter(',');
  command
      .add_option("--by", by_,
                  "where figures come from: rehearsal (the engine in virtual time), bound (what no schedule beats), or "
                  "auto (the first, where it takes seconds)")
      ->check(CLI::IsMember({"auto", "rehearsal", "bound"}))
      ->capture_default_str();
  command.add_option("--drives", drives_, "of a node (default: as many as hold the block tier; 4 where it has no end)")
      ->check(CLI::Range(1, 10'000));
  command.add_option("--drive-capacity", drive_capacity_, "of each")->capture_default_str();
  command.add_option("--drive-writes-a-day", drive_writes_a_day_, "rated endurance, in capacities a day (DWPD)")
      ->check(in_range)
      ->capture_default_str();
  command.add_option("--drive-years", drive_years_, "for which that is rated")->check(in_range)->capture_default_str();
  command.add_option("--plot", picture_, "draw the curve over DRAM into this PNG, by a Python with matplotlib");
  command.add_option("--python", python_, "for --plot")->capture_default_str();
}

Result<forecast::PlanOptions> PlanCommand::options() const {
  const auto node = workload::load_node(node_);
  if (!node) return std::unexpected(node.error());
  forecast::PlanOptions options{.recipe = recipe_.recipe(), .node = *node};
  if (by_ != "auto") options.source = by_ == "bound" ? forecast::Source::kBound : forecast::Source::kRehearsal;
  for (const std::string& text : dram_) {
    const auto bytes = size("--dram", text);
    if (!bytes) return std::unexpected(bytes.error());
    options.dram_bytes.push_back(*bytes);
  }
  const auto capacity = size("--drive-capacity", drive_capacity_);
  if (!capacity) return std::unexpected(capacity.error());
  options.drives = {
      .count = drives_, .capacity_bytes = *capacity, .writes_a_day = drive_writes_a_day_, .rated_years = drive_years_};
  options.progress = show_progress;
  return options;
}

Result<std::string> PlanCommand::run(bool json) const {
  if (!picture_.empty()) {
    if (std::string lack = picture::cannot_draw(python_); !lack.empty())
      return fail(ErrorCode::kUnavailable, std::move(lack));
    if (const std::string lack = picture::cannot_write(picture_); !lack.empty())
      return fail(ErrorCode::kInvalidArgument, "--plot: " + lack);
  }
  const auto asked = options();
  if (!asked) return std::unexpected(asked.error());
  const auto plan = forecast::make_plan(*asked);
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\033[K");
  if (!plan) return std::unexpected(plan.error());
  if (!picture_.empty())
    if (const auto drawn = draw_plan(*plan, picture_, python_); !drawn) return std::unexpected(drawn.error());
  return json ? to_json(*plan).dump(2) + '\n' : plan_text(*plan);
}

}  // namespace terrace::ctl
