// SPDX-License-Identifier: Apache-2.0
// What is mounted, as this process sees it.
#pragma once

#include <string>
#include <vector>

namespace terrace::topology {

struct Mount {
  unsigned major = 0;  // of the device, as stat(2) has it of what lies there
  unsigned minor = 0;
  std::string point;  // where it is mounted
  bool is_writable = false;
  std::string file_system;  // "ext4"
  std::string source;       // "/dev/nvme0n1p1"
};

// From mountinfo, in its order: of two at one point the later one is seen. `root` stands before /proc. What cannot be
// read is left out.
std::vector<Mount> mounts(const std::string& root);

}  // namespace terrace::topology
