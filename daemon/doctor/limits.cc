// SPDX-License-Identifier: Apache-2.0
// This process's limits, and those of its cgroups.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/bytes.h"
#include "config/resolve.h"
#include "doctor/checks.h"
#include "topology/cgroup.h"
#include "topology/report.h"
#include "topology/text_file.h"

namespace terrace::doctor {
namespace {

constexpr topology::CgroupLimit kMemoryHigh{"memory.high", "", ""};  // of version 2 alone
constexpr topology::CgroupLimit kCpuQuota{"cpu.max", "cpu", "cpu.cfs_quota_us"};
// The reactor, a worker that copies and one that checks, and gRPC.
constexpr double kProcessorsMin = 4;
// What the daemon takes beside its tiers: code, tables, regions of sessions, the kernel's share. Of a limit, as a part.
constexpr std::uint64_t kBesideTiersPercent = 10;

// The least of what these files say, and which says it.
struct Least {
  std::uint64_t bytes = topology::kUnlimited;
  std::string path;
};

Least least_of(const Node& node, const topology::CgroupLimit& limit) {
  Least least;
  for (const topology::CgroupFile& file : topology::cgroup_files(node.root, limit)) {
    const auto bytes = topology::leading_number(file.text);
    if (bytes && *bytes < least.bytes) least = {*bytes, file.path};
  }
  return least;
}

struct Quota {
  double processors = std::numeric_limits<double>::infinity();
  std::string path;
};

// Version 2 has "QUOTA PERIOD" in one file, version 1 has a file each; microseconds. "max" and -1 are none.
double processors_of(const Node& node, const topology::CgroupFile& file) {
  const auto quota = topology::leading_number(file.text);
  if (!quota) return std::numeric_limits<double>::infinity();
  const std::size_t blank = file.text.find(' ');
  const auto period =
      blank != std::string::npos
          ? topology::leading_number(std::string_view(file.text).substr(blank))
          : topology::read_number(node.root + file.path.substr(0, file.path.rfind('/')) + "/cpu.cfs_period_us");
  if (!period || *period == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

Quota least_quota(const Node& node) {
  Quota least;
  for (const topology::CgroupFile& file : topology::cgroup_files(node.root, kCpuQuota)) {
    const double processors = processors_of(node, file);
    if (processors < least.processors) least = {processors, file.path};
  }
  return least;
}

Findings without_memory_tiers(const Node& node) {
  return {not_applicable(node.refusal ? kTiersUnknown : "no tier lies in the machine's memory")};
}

std::uint64_t processor_count(const topology::Machine& machine) {
  std::uint64_t count = 0;
  for (const topology::NumaNode& each : machine.numa_nodes) count += each.cpus.size();
  return count;
}

}  // namespace

Findings check_memlock(const Node& node) {
  const bool is_known = node.config_file.empty() || block_tier(node.config) != nullptr;
  if (!is_known && node.refusal) return {not_applicable(kTiersUnknown)};
  if (!is_known) return {not_applicable("without a block tier nothing is registered with io_uring")};
  const std::uint64_t wanted = memory_tiers_bytes(node.config);
  if (wanted == 0) return without_memory_tiers(node);
  const std::uint64_t may = node.machine.memlock_bytes;
  if (may >= wanted)
    return {ok(fmt::format("memlock is {}, and the memory tiers have {}", topology::limit_text(may),
                           topology::limit_text(wanted)))};
  return {warning(fmt::format("memlock is {}, and the memory tiers have {}: with a block tier, the kernel looks up and "
                              "pins what is not registered anew for every transfer",
                              topology::limit_text(may), topology::limit_text(wanted)),
                  "ulimit -l unlimited; of a service, LimitMEMLOCK=infinity by `systemctl edit terraced`")};
}

Findings check_open_files(const Node& node) {
  if (node.refusal) return {not_applicable(kTiersUnknown)};
  config::Config asked = node.config;
  asked.limits = node.limits;
  const std::uint64_t wanted = config::descriptors_at_most(asked);
  const std::uint64_t may = node.machine.open_files_max;
  if (may == topology::kUnlimited) return {ok(fmt::format("unlimited, and the daemon takes up to {}", wanted))};
  if (may >= wanted) return {ok(fmt::format("{} may be open, and the daemon takes up to {}", may, wanted))};
  return {
      warning(fmt::format("{} may be open, and the daemon takes up to {} with the {} connections of "
                          "limits.connections_max: it lets in fewer",
                          may, wanted, asked.limits.connections_max),
              fmt::format("ulimit -n {}; of a service, LimitNOFILE={} by `systemctl edit terraced`", wanted, wanted))};
}

Findings check_cgroup_memory(const Node& node) {
  const std::uint64_t tiers = memory_tiers_bytes(node.config);
  const Least most = least_of(node, topology::kCgroupMemory);
  const Least high = least_of(node, kMemoryHigh);
  const bool is_bound = most.bytes < node.machine.memory_total_bytes;
  if (!is_bound && high.bytes >= node.machine.memory_total_bytes)
    return {not_applicable("no cgroup of this process limits its memory")};
  const Least& least = high.bytes < most.bytes ? high : most;
  if (tiers == 0) return without_memory_tiers(node);
  const std::string figures =
      fmt::format("{} is {}, and the memory tiers have {}", least.path, format_bytes(least.bytes), format_bytes(tiers));
  const std::string mend =
      "make the tiers' `capacity` smaller; of a service, MemoryMax=infinity and MemoryHigh=infinity by `systemctl edit "
      "terraced`";
  if (is_bound && tiers > most.bytes)
    return {failure(fmt::format("{}: the kernel would end the daemon before they are full", figures), mend)};
  if (high.bytes < most.bytes && tiers > high.bytes)
    return {warning(fmt::format("{}: beyond it the kernel slows the daemon down, and takes its pages", figures), mend)};
  if (tiers > least.bytes / 100 * (100 - kBesideTiersPercent))
    return {
        warning(fmt::format("{}: less than {} % is left for the daemon itself", figures, kBesideTiersPercent), mend)};
  return {ok(figures)};
}

Findings check_cgroup_cpu(const Node& node) {
  const Quota quota = least_quota(node);
  const auto all = static_cast<double>(processor_count(node.machine));
  if (quota.processors >= all) return {not_applicable("no cgroup of this process limits its processors")};
  const std::string figures = fmt::format("{} allows {:.4g} of {} processors", quota.path, quota.processors, all);
  if (quota.processors >= std::min(kProcessorsMin, all)) return {ok(figures)};
  return {warning(fmt::format("{}: a daemon that has used them up stands still for the rest of each period", figures),
                  "systemctl set-property terraced CPUQuota=")};
}

}  // namespace terrace::doctor
