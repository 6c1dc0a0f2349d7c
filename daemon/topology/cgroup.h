// SPDX-License-Identifier: Apache-2.0
// What the cgroups of this process say, of version 1 and of version 2. Those above it bind it too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::topology {

// Where a limit is written: which file of version 2, and of version 1 which file of which controller.
struct CgroupLimit {
  std::string_view v2_file;
  std::string_view v1_controller;
  std::string_view v1_file;
};
inline constexpr CgroupLimit kCgroupMemory{"memory.max", "memory", "memory.limit_in_bytes"};

struct CgroupFile {
  std::string path;  // as the system has it: without the root
  std::string text;
};

// The files of that limit that can be read, of this process's cgroup and of each above it, innermost first. `root`
// stands before /proc and /sys.
std::vector<CgroupFile> cgroup_files(const std::string& root, const CgroupLimit& limit);

}  // namespace terrace::topology
