// SPDX-License-Identifier: Apache-2.0
#include "topology/memory_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "topology/machine.h"
#include "topology/text_file.h"

namespace terrace::topology {
namespace {

constexpr int kCapIpcLock = 14;  // capabilities(7)

// Lowers `limit` to the least that `file` says in `cgroup` or above it, where they are mounted at `mount`. A container
// that sees its own cgroup as the mount's root has no folder of the name that /proc tells, and the walk ends at the
// root, which is the right one.
void apply_cgroup(const std::string& root, std::string_view mount, std::string cgroup, std::string_view file,
                  MemoryLimit& limit) {
  while (true) {
    if (cgroup == "/") cgroup.clear();
    const std::string path = std::string(mount) + cgroup + "/" + std::string(file);
    const std::optional<std::uint64_t> bytes = read_number(root + path);
    if (bytes && *bytes < limit.bytes) {
      limit.bytes = *bytes;
      limit.source = "cgroup " + path;
    }
    if (cgroup.empty()) return;
    cgroup.resize(cgroup.rfind('/'));
  }
}

// Whether the comma-separated `list` holds `word`.
bool lists(std::string_view list, std::string_view word) {
  while (true) {
    const std::size_t comma = list.find(',');
    if (list.substr(0, comma) == word) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

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
  // cgroups(7): each line is "hierarchy:controllers:path"; version 2 has no controllers.
  const std::string cgroups = read_text(root + "/proc/self/cgroup").value_or("");
  std::string_view rest = cgroups;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (!path.starts_with('/')) continue;
    if (controllers.empty()) {
      apply_cgroup(root, "/sys/fs/cgroup", path, "memory.max", limit);
      apply_cgroup(root, "/sys/fs/cgroup/unified", path, "memory.max", limit);
    } else if (lists(controllers, "memory")) {
      apply_cgroup(root, "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", limit);
    }
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
