// SPDX-License-Identifier: Apache-2.0
// How much memory this process may really use, and how many descriptors. Internal to topology.
#pragma once

#include <cstdint>
#include <string>

namespace terrace::topology {

struct MemoryLimit {
  std::uint64_t bytes = 0;        // what may be used
  std::uint64_t total_bytes = 0;  // what the machine has
  std::string source;             // as Machine::memory_limit_source
};

// The larger of `hwloc_bytes` and MemTotal, but no more than the limit of this process's cgroup (version 1 or 2) or of
// any cgroup above it. `root` stands before /proc and /sys.
MemoryLimit memory_limit(const std::string& root, std::uint64_t hwloc_bytes);

// Locked memory that this process may have: RLIMIT_MEMLOCK as /proc has it; kUnlimited where there is none, or where
// the process has CAP_IPC_LOCK and `capability_counts`: in a user namespace of its own the ring does not honour it.
std::uint64_t memlock_limit(const std::string& root, bool capability_counts);

// Descriptors that this process may have: RLIMIT_NOFILE as /proc has it; kUnlimited where there is none.
std::uint64_t open_files_limit(const std::string& root);

}  // namespace terrace::topology
