// SPDX-License-Identifier: Apache-2.0
#include "workload/node_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ostream>

#include "base/check.h"
#include "config/parse.h"
#include "config/problems.h"

namespace terrace::workload {
namespace {

using config::Config;
using config::TierConfig;
using config::TierKind;

// Sockets that are not configured get a path here; a node has none.
constexpr char kNoFolder[] = "/run/terrace";

// The capacities of one kind of tier.
struct Tiers {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;  // of each one
};

class NodeOf {
 public:
  explicit NodeOf(const Config& config) : config_(config), problems_(config.source) {}

  Result<Node> node() {
    const Tiers devices = tiers(TierKind::kDevice);
    const Tiers memory = tiers(TierKind::kMemory);
    const Tiers block = tiers(TierKind::kBlock);
    if (devices.count == 0) {
      problems_.add(0, "tier", "there is no device tier; what a workload computes on is a [[tier]] of kind \"device\"");
    }
    Node node{.name = config_.source,
              .hbm_bytes = devices.bytes,
              .host_bytes = memory.bytes,
              .block_bytes = block.bytes,
              .hbm = {},
              .block = {}};
    const config::Links& links = config_.links;
    if (memory.count > 0) {
      node.hbm = {.in_bytes_per_s = speed("host_to_device", links.host_to_device_bytes_per_s),
                  .out_bytes_per_s = speed("device_to_host", links.device_to_host_bytes_per_s),
                  .latency = std::chrono::microseconds(links.device_latency_us),
                  .in_drain = {},
                  .both_bytes_per_s = links.device_both_bytes_per_s};
    }
    if (block.count > 0) {
      node.block = {.in_bytes_per_s = speed("block_read", links.block_read_bytes_per_s),
                    .out_bytes_per_s = speed("block_write", links.block_write_bytes_per_s),
                    .latency = std::chrono::microseconds(links.block_latency_us),
                    .in_drain = std::chrono::microseconds(links.block_read_drain_us),
                    .both_bytes_per_s = links.block_both_bytes_per_s};
    }
    if (links.device_within_bytes_per_s > 0) node.hbm_within_bytes_per_s = links.device_within_bytes_per_s;
    if (links.memory_within_bytes_per_s > 0) node.host_within_bytes_per_s = links.memory_within_bytes_per_s;
    node.request_latency = std::chrono::microseconds(links.request_latency_us);
    if (block.count > 0 && memory.count == 0) {
      problems_.add(0, "tier", "there is no memory tier; bytes reach the block tier through one");
    }
    if (!problems_.none()) return std::unexpected(problems_.error());
    return share(node, devices.count);
  }

 private:
  Tiers tiers(TierKind kind) {
    Tiers tiers;
    for (const TierConfig& tier : config_.tiers) {
      if (tier.kind != kind) continue;
      const auto complain = [&](std::string_view what) {
        problems_.add(tier.origin.line_of("capacity"), tier.origin.name_of("capacity"), what);
      };
      if (tier.capacity.percent) complain("is a part of a machine; in a node's file it must be a size");
      if (tiers.count > 0 && tier.capacity.bytes != tiers.bytes)
        complain("differs from that of the other device tiers");
      tiers = {.count = tiers.count + 1, .bytes = tier.capacity.bytes};
    }
    return tiers;
  }

  std::uint64_t speed(std::string_view key, std::uint64_t bytes_per_s) {
    if (bytes_per_s == 0) {
      problems_.add(config_.links.origin.line, fmt::format("links.{}", key),
                    "is missing; write a speed such as \"55GB/s\" under [links]");
    }
    return bytes_per_s;
  }

  const Config& config_;
  config::Problems problems_;
};

void write_tier(const char* kind, std::uint64_t bytes, const std::string& more, std::ostream& out) {
  TERRACE_CHECK(bytes != kUnlimited);
  if (bytes > 0) out << fmt::format("[[tier]]\nkind = \"{}\"\ncapacity = {}\n{}\n", kind, bytes, more);
}

void write_speed(const char* key, std::uint64_t bytes_per_s, std::ostream& out) {
  if (bytes_per_s > 0) out << fmt::format("{} = \"{:.3f}MB/s\"\n", key, static_cast<double>(bytes_per_s) / 1e6);
}

void write_latency(const char* key, Duration latency, std::ostream& out) {
  if (latency > Duration::zero())
    out << fmt::format("{} = {}\n", key, std::chrono::round<std::chrono::microseconds>(latency).count());
}

}  // namespace

Result<Node> node_of(const Config& config) { return NodeOf(config).node(); }

Result<Node> load_node(const std::string& name_or_path) {
  if (const std::optional<Node> node = reference_node(name_or_path)) return *node;
  const Result<config::Draft> draft = config::load(name_or_path, kNoFolder);
  if (!draft) {
    if (draft.error().code != ErrorCode::kNotFound) return std::unexpected(draft.error());
    return fail(ErrorCode::kNotFound,
                fmt::format("{}: there is no such file, and no such node; the nodes known by name are {}", name_or_path,
                            fmt::join(kReferenceNodes, ", ")));
  }
  if (!draft->problems.none()) return std::unexpected(draft->problems.error());
  return node_of(draft->config);
}

void write_node(const Node& node, const std::string& block_path, std::ostream& out) {
  TERRACE_CHECK(node.gpus == 1);
  write_tier("device", node.hbm_bytes, "", out);
  write_tier("memory", node.host_bytes, "", out);
  write_tier("block", node.block_bytes, fmt::format("paths = [\"{}\"]\n", block_path), out);
  write_links(node, out);
}

void write_links(const Node& node, std::ostream& out) {
  out << "[links]\n";
  write_speed("host_to_device", node.hbm.in_bytes_per_s, out);
  write_speed("device_to_host", node.hbm.out_bytes_per_s, out);
  write_speed("device_both", node.hbm.both_bytes_per_s, out);
  write_latency("device_latency_us", node.hbm.latency, out);
  write_speed("device_within", node.hbm_within_bytes_per_s, out);
  write_speed("memory_within", node.host_within_bytes_per_s, out);
  write_speed("block_read", node.block.in_bytes_per_s, out);
  write_speed("block_write", node.block.out_bytes_per_s, out);
  write_speed("block_both", node.block.both_bytes_per_s, out);
  write_latency("block_latency_us", node.block.latency, out);
  write_latency("block_read_drain_us", node.block.in_drain, out);
  write_latency("request_latency_us", node.request_latency, out);
}

}  // namespace terrace::workload
