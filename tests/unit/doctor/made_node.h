// SPDX-License-Identifier: Apache-2.0
// A node for the checks: a healthy machine whose /proc, /sys, /dev and /run are a folder of the test's, with one memory
// tier of 1 GiB. A test changes what it is about.
#pragma once

#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "base/bytes.h"
#include "doctor/checks.h"
#include "unit/topology/fake_root.h"

namespace terrace::doctor {

class MadeNode : public testing::Test {
 protected:
  MadeNode() {
    node_.root = root_.path();
    node_.is_root = true;
    node_.config_file = "terraced.toml";
    topology::Machine& machine = node_.machine;
    machine.numa_nodes = {{.os_index = 0, .bytes = 64 * kGiB, .cpus = {0, 1, 2, 3, 4, 5, 6, 7}}};
    machine.memory_bytes = machine.memory_total_bytes = 64 * kGiB;
    machine.memlock_bytes = topology::kUnlimited;
    machine.io_uring.available = true;
    machine.io_uring.features = {"read_fixed", "write_fixed", "defer_taskrun"};
    config::TierConfig memory;
    memory.capacity.bytes = kGiB;
    node_.config.tiers = {memory};
  }

  void write(const std::string& name, const std::string& text) { root_.write(name, text); }
  void link(const std::string& name, const std::string& target) {
    const std::filesystem::path path = root_.path() + name;
    std::filesystem::create_directories(path.parent_path());
    std::filesystem::create_directory_symlink(root_.path() + target, path);
  }
  void add_block(const std::string& path, std::uint64_t bytes = 16 * kMiB) {
    config::TierConfig block;
    block.kind = config::TierKind::kBlock;
    block.capacity.bytes = bytes;
    block.paths = {path};
    node_.config.tiers.push_back(block);
  }

  topology::FakeRoot root_;
  Node node_;
};

// What a check is to say of something: a verdict, and words of the reason and of what mends it.
inline testing::Matcher<const Finding&> is(Verdict verdict, const std::string& reason, const std::string& mend = "") {
  return testing::AllOf(testing::Field("verdict", &Finding::verdict, verdict),
                        testing::Field("reason", &Finding::reason, testing::HasSubstr(reason)),
                        testing::Field("mend", &Finding::mend, testing::HasSubstr(mend)));
}

inline constexpr Verdict kOk = Verdict::kOk;
inline constexpr Verdict kWarning = Verdict::kWarning;
inline constexpr Verdict kFailure = Verdict::kFailure;
inline constexpr Verdict kNotApplicable = Verdict::kNotApplicable;

}  // namespace terrace::doctor
