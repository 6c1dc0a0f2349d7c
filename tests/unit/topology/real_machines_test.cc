// SPDX-License-Identifier: Apache-2.0
// Shows that discover() sees real GPU machines of several sockets as they are, from what hwloc exported on them. The
// files are part of hwloc's source: deploy/machines fetches them.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "topology/machine.h"
#include "unit/topology/fake_root.h"

namespace terrace::topology {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

class RealMachine : public testing::Test {
 protected:
  // What discover() makes of the machine; skips the test if its file was not fetched.
  void look_at(const std::string& name) {
    const std::filesystem::path file = std::filesystem::path(TERRACE_MACHINES) / (name + ".xml");
    if (!std::filesystem::exists(file)) GTEST_SKIP() << "deploy/machines did not fetch " << file.filename();
    Result<Machine> found = discover({root_.path(), file.string(), IoUring()});
    ASSERT_TRUE(found) << found.error().message;
    machine_ = std::move(*found);
    for (const Gpu& gpu : machine_.gpus) gpus_.push_back(at(gpu.pci_bus_id, gpu.numa_node));
    for (const BlockDevice& device : machine_.block_devices) disks_.push_back(at(device.name, device.numa_node));
  }

  static std::string at(const std::string& what, std::optional<unsigned> node) {
    return node ? fmt::format("{}@{}", what, *node) : what + "@?";
  }

  FakeRoot root_;
  Machine machine_;
  std::vector<std::string> gpus_;
  std::vector<std::string> disks_;
};

TEST_F(RealMachine, TwoXeonsWithThreeFermis) {
  ASSERT_NO_FATAL_FAILURE(look_at("32em64t-2n8c2t-pci-normalio"));
  if (IsSkipped()) return;
  ASSERT_THAT(machine_.numa_nodes, SizeIs(2));
  EXPECT_THAT(machine_.numa_nodes[0].cpus, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23));
  EXPECT_EQ(machine_.numa_nodes[1].bytes, 34359738368u);
  EXPECT_EQ(machine_.memory_bytes, 34330173440u + 34359738368u);
  EXPECT_THAT(gpus_, ElementsAre("0000:03:00.0@0", "0000:83:00.0@1", "0000:84:00.0@1"));
  EXPECT_EQ(machine_.gpus[0].name, "Tesla M2075 Dual-Slot Computing Processor Module");
  EXPECT_THAT(disks_, ElementsAre("sda@0"));
}

TEST_F(RealMachine, TwoXeonsWhoseProcessorsAlternate) {
  ASSERT_NO_FATAL_FAILURE(look_at("24em64t-2n6c2t-pci"));
  if (IsSkipped()) return;
  ASSERT_THAT(machine_.numa_nodes, SizeIs(2));
  EXPECT_THAT(machine_.numa_nodes[0].cpus, ElementsAre(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22));
  EXPECT_THAT(gpus_, ElementsAre("0000:06:00.0@0", "0000:11:00.0@1", "0000:14:00.0@1"));
  EXPECT_EQ(machine_.gpus[0].name, "NVIDIA device 06d2");
  EXPECT_THAT(disks_, ElementsAre("sda@0"));
}

TEST_F(RealMachine, TwoPower8WithAPciDomainForEachOfFourPascals) {
  ASSERT_NO_FATAL_FAILURE(look_at("power8gpudistances"));
  if (IsSkipped()) return;
  ASSERT_THAT(machine_.numa_nodes, SizeIs(2));
  EXPECT_THAT(gpus_, ElementsAre("0002:01:00.0@0", "0003:01:00.0@0", "000a:01:00.0@1", "000b:01:00.0@1"));
  for (const Gpu& gpu : machine_.gpus) EXPECT_EQ(gpu.name, "Tesla P100-SXM2-16GB");
}

// A cgroup allows its first two: the GPUs are near others, which to this process are not there.
TEST_F(RealMachine, EightSocketsOfWhichTheProcessMayUseTwo) {
  ASSERT_NO_FATAL_FAILURE(look_at("64intel64-3g2n+2n-irregulargroups+pci"));
  if (IsSkipped()) return;
  ASSERT_THAT(machine_.numa_nodes, SizeIs(2));
  EXPECT_EQ(machine_.numa_nodes[1].os_index, 1u);
  EXPECT_EQ(machine_.memory_bytes, 33243172864u + 33269219328u);
  EXPECT_THAT(gpus_, ElementsAre("0002:01:00.0@?", "0004:01:00.0@?"));
  EXPECT_THAT(disks_, ElementsAre("sda@1"));
}

}  // namespace
}  // namespace terrace::topology
