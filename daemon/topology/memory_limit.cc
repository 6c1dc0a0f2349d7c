// SPDX-License-Identifier: Apache-2.0
#include "topology/memory_limit.h"

#include <sys/resource.h>

#include <optional>
#include <string_view>

#include "topology/cgroup.h"
#include "topology/machine.h"
#include "topology/text_file.h"

namespace terrace::topology {
namespace {

constexpr int kCapIpcLock = 14;  // capabilities(7)

// What is in effect of one of /proc's limits; none if it is not listed.
std::optional<std::uint64_t> soft_limit(const std::string& root, std::string_view name) {
  const std::string limits = read_text(root + "/proc/self/limits").value_or("");
  const std::optional<std::string_view> line = line_after(limits, name);
  if (!line) return std::nullopt;
  return line->starts_with("unlimited") ? kUnlimited : leading_number(*line).value_or(0);
}

void raise_to_hard_limit(__rlimit_resource_t resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(resource, &limit));
}

}  // namespace

MemoryLimit memory_limit(const std::string& root, std::uint64_t hwloc_bytes) {
  MemoryLimit limit{hwloc_bytes, hwloc_bytes, "hwloc"};
  if (const auto meminfo = read_text(root + "/proc/meminfo")) {
    const std::optional<std::string_view> line = line_after(*meminfo, "MemTotal:");
    const std::uint64_t total = line ? leading_number(*line).value_or(0) * 1024 : 0;
    if (total >= hwloc_bytes) limit = {total, total, "MemTotal"};
  }
  for (const CgroupFile& file : cgroup_files(root, kCgroupMemory)) {
    const std::optional<std::uint64_t> bytes = leading_number(file.text);
    if (!bytes || *bytes >= limit.bytes) continue;
    limit.bytes = *bytes;
    limit.source = "cgroup " + file.path;
  }
  return limit;
}

std::uint64_t memlock_limit(const std::string& root, bool capability_counts) {
  if (const auto status = read_text(root + "/proc/self/status"); status && capability_counts) {
    const std::optional<std::string_view> effective = line_after(*status, "CapEff:");
    if (effective && (leading_number(*effective, 16).value_or(0) >> kCapIpcLock & 1) != 0) return kUnlimited;
  }
  return soft_limit(root, "Max locked memory").value_or(0);
}

std::uint64_t open_files_limit(const std::string& root) {
  return soft_limit(root, "Max open files").value_or(kUnlimited);
}

void raise_limits() {
  raise_to_hard_limit(RLIMIT_NOFILE);
  // With the capability the first succeeds; without it the second does; that neither did shows in discover().
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_MEMLOCK, &unlimited) != 0) raise_to_hard_limit(RLIMIT_MEMLOCK);
}

}  // namespace terrace::topology
