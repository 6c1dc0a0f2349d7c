// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <tuple>

#include "base/bytes.h"
#include "bench/calibration.h"
#include "bench/command_options.h"
#include "bench/commands.h"
#include "workload/node_file.h"

namespace terrace::bench {
namespace {

struct CalibrateArguments {
  std::string device = "1GiB";
  std::string memory = "4GiB";
  std::string block = "16GiB";
  std::string output = "-";
};

Result<void> take_capacity(const char* option, const std::string& text, std::uint64_t& bytes) {
  const auto parsed = parse_bytes(text);
  if (!parsed) return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", option, parsed.error().message));
  bytes = *parsed;
  return {};
}

// What the file says of tiers: nothing is measured with it.
Result<workload::Node> capacities(const CalibrateArguments& arguments) {
  workload::Node node;
  for (const auto& [option, text, bytes] : {std::tuple("--device", &arguments.device, &node.hbm_bytes),
                                            std::tuple("--memory", &arguments.memory, &node.host_bytes),
                                            std::tuple("--block", &arguments.block, &node.block_bytes)})
    if (const auto taken = take_capacity(option, *text, *bytes); !taken) return std::unexpected(taken.error());
  return node;
}

Result<void> write(const workload::Node& node, const std::string& block_path, const std::string& output) {
  std::ofstream file;
  if (output != "-") file.open(output, std::ios::trunc);
  std::ostream& out = output == "-" ? std::cout : file;
  workload::write_node(node, block_path, out);
  out.flush();
  if (out) return {};
  return fail(ErrorCode::kPermissionDenied,
              output + " cannot be written; name a file in a folder that can be written to");
}

int calibrate_into(const CalibrateArguments& arguments, CommandOptions& options) {
  const auto tiers = capacities(arguments);
  if (!tiers) return refuse(tiers.error());
  const auto settings = options.settings(kCalibrationDiskBytes);
  if (!settings) return refuse(settings.error());
  auto node = calibrate(Bench(*settings));
  if (!node) return refuse(node.error());
  node->hbm_bytes = tiers->hbm_bytes;
  node->host_bytes = tiers->host_bytes;
  node->block_bytes = tiers->block_bytes;
  const auto written = write(*node, (settings->disk / "terrace.block").string(), arguments.output);
  return written ? 0 : refuse(written.error());
}

}  // namespace

int calibrate_command(int argc, char** argv) {
  CalibrateArguments arguments;
  CLI::App app(
      "Measures this machine's links through a daemon of its own, and writes a node file: a configuration with link "
      "speeds, for terrace-sim --node, terracectl plan --node, terrace-bench replay --node, and the daemon.",
      "terrace-bench calibrate");
  CommandOptions options(app);
  app.add_option("--device", arguments.device, "The file's capacity of the device tier")->capture_default_str();
  app.add_option("--memory", arguments.memory, "That of the memory tier")->capture_default_str();
  app.add_option("--block", arguments.block, "That of the block tier")->capture_default_str();
  app.add_option("--output", arguments.output, "The file; - for standard output")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return calibrate_into(arguments, options);
}

}  // namespace terrace::bench
