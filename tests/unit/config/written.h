// SPDX-License-Identifier: Apache-2.0
// What tests of resolve() begin with: a machine, and configurations as they are written.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/bytes.h"
#include "config/resolve.h"

namespace terrace::config {

// 256 GiB on two nodes, of which the cgroup allows 100 GiB.
inline topology::Machine limited_machine() {
  topology::Machine machine;
  machine.numa_nodes = {{0, 128 * kGiB, {0, 1}, 10, 10}, {1, 128 * kGiB, {2, 3}, 20, 20}};
  machine.gpus = {{"0000:12:00.0", "H100", 0}};
  machine.memory_total_bytes = 256 * kGiB;
  machine.memory_bytes = 100 * kGiB;
  machine.memory_limit_source = "cgroup /sys/fs/cgroup/jobs/memory.max";
  return machine;
}

// A folder for sockets that is not there and could be made.
inline std::string runtime() { return (std::filesystem::temp_directory_path() / "terrace-run").string(); }

inline Config config_of(const std::string& text) {
  Result<Config> config = parse(text, "t.toml", runtime());
  EXPECT_TRUE(config) << config.error().message;
  return config.value_or(Config());
}

inline std::string memory_tier(const std::string& capacity, const std::string& more = "") {
  return "[[tier]]\nkind = \"memory\"\ncapacity = \"" + capacity + "\"\n" + more + "\n";
}

inline std::string device_tier(const std::string& device, const std::string& capacity, const std::string& more = "") {
  return "[[tier]]\nkind = \"device\"\ncapacity = \"" + capacity + "\"\ndevice = \"" + device + "\"\n" + more + "\n";
}

}  // namespace terrace::config
