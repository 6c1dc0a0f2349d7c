// SPDX-License-Identifier: Apache-2.0
// Shows what discover() finds on a training node of two sockets and eight GPUs (from hwloc XML) and on this machine,
// and that the memory it believes is neither hwloc's alone nor more than the cgroup allows.

#include <gmock/gmock.h>

#include "base/bytes.h"
#include "topology/machine.h"
#include "unit/topology/fake_root.h"

namespace terrace::topology {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kTwoSockets[] = TERRACE_TEST_DATA "/two_sockets_eight_gpus.xml";
constexpr char kUnlimitedLocks[] = "Max locked memory         unlimited            unlimited            bytes\n";

class Discover : public testing::Test {
 protected:
  Machine discover_or_fail() {
    const Sources sources{root_.path(), kTwoSockets,
                          IoUring{.available = true,
                                  .system_error = 0,
                                  .why_not = "",
                                  .features = {},
                                  .registers_slice = capability_counts_}};
    Result<Machine> machine = discover(sources);
    EXPECT_TRUE(machine) << machine.error().message;
    return machine.value_or(Machine());
  }

  FakeRoot root_;
  bool capability_counts_ = true;
};

TEST_F(Discover, FindsNodesOfTwoSocketsAndMemoryWithoutCpus) {
  const Machine machine = discover_or_fail();
  ASSERT_THAT(machine.numa_nodes, SizeIs(3));
  EXPECT_EQ(machine.numa_nodes[0].bytes, 1024 * kGiB);
  EXPECT_THAT(machine.numa_nodes[0].cpus, ElementsAre(0, 1));
  EXPECT_THAT(machine.numa_nodes[1].cpus, ElementsAre(2, 3));
  EXPECT_EQ(machine.numa_nodes[2].bytes, 256 * kGiB);
  EXPECT_TRUE(machine.numa_nodes[2].cpu_less());
  EXPECT_FALSE(machine.numa_nodes[1].cpu_less());
  EXPECT_EQ(machine.numa_node(3), nullptr);
}

TEST_F(Discover, FindsGpusByTheirNodeAndNoSwitchAmongThem) {
  const Machine machine = discover_or_fail();
  ASSERT_THAT(machine.gpus, SizeIs(8));
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(machine.gpus[i].numa_node, i / 4) << machine.gpus[i].pci_bus_id;
  EXPECT_EQ(machine.gpus[0].pci_bus_id, "0000:12:00.0");
  EXPECT_EQ(machine.gpus[0].name, "GH100 [H100 SXM5 80GB]");
  EXPECT_EQ(machine.gpus[1].name, "NVIDIA device 2330") << "one that the system has no name for";
}

TEST_F(Discover, FindsBlockDevicesByTheirNode) {
  const Machine machine = discover_or_fail();
  std::vector<std::string> found;
  for (const BlockDevice& device : machine.block_devices) {
    ASSERT_TRUE(device.numa_node) << device.name;
    found.push_back(device.name + "@" + std::to_string(*device.numa_node));
  }
  EXPECT_THAT(found, ElementsAre("nvme0n1@0", "nvme1n1@0", "nvme2n1@1", "nvme3n1@1"));
}

TEST_F(Discover, BelievesTheKernelWhereHwlocSeesLess) {
  const std::uint64_t kib = 4096 * kGiB / kKiB;
  root_.write("/proc/meminfo", "MemTotal:       " + std::to_string(kib) + " kB\nMemFree:  1 kB\n");
  root_.write("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       " + std::to_string(kib / 2) + " kB\n");
  const Machine machine = discover_or_fail();
  EXPECT_EQ(machine.memory_bytes, 4096 * kGiB);
  EXPECT_EQ(machine.memory_limit_source, "MemTotal");
  EXPECT_EQ(machine.numa_nodes[0].bytes, 1024 * kGiB);
  EXPECT_EQ(machine.numa_nodes[1].bytes, 2048 * kGiB);
}

TEST_F(Discover, BelievesHwlocWhereTheKernelSaysLess) {
  root_.write("/proc/meminfo", "MemTotal: 1024 kB\n");
  const Machine machine = discover_or_fail();
  EXPECT_EQ(machine.memory_bytes, 2304 * kGiB);
  EXPECT_EQ(machine.memory_limit_source, "hwloc");
}

TEST_F(Discover, ACgroupOfVersionTwoLimitsMemory) {
  root_.write("/proc/meminfo", "MemTotal: 4294967296 kB\n");
  root_.write("/proc/self/cgroup", "0::/jobs/train\n");
  root_.write("/sys/fs/cgroup/jobs/train/memory.max", "max\n");
  root_.write("/sys/fs/cgroup/jobs/memory.max", "68719476736\n");
  const Machine machine = discover_or_fail();
  EXPECT_EQ(machine.memory_bytes, 64 * kGiB) << "the limit of a cgroup above this one counts too";
  EXPECT_EQ(machine.memory_total_bytes, 4096 * kGiB);
  EXPECT_EQ(machine.memory_limit_source, "cgroup /sys/fs/cgroup/jobs/memory.max");
}

TEST_F(Discover, ACgroupOfVersionOneLimitsMemory) {
  root_.write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/train\n0::/\n");
  root_.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root_.write("/sys/fs/cgroup/memory/jobs/train/memory.limit_in_bytes", "34359738368\n");
  const Machine machine = discover_or_fail();
  EXPECT_EQ(machine.memory_bytes, 32 * kGiB);
  EXPECT_EQ(machine.memory_limit_source, "cgroup /sys/fs/cgroup/memory/jobs/train/memory.limit_in_bytes");
}

TEST_F(Discover, AContainerThatSeesItsCgroupAsTheRootIsLimited) {
  root_.write("/proc/self/cgroup", "4:memory:/docker/0123\n");
  root_.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "8589934592\n");
  EXPECT_EQ(discover_or_fail().memory_bytes, 8 * kGiB);
}

TEST_F(Discover, ReadsLimitsAndHugePages) {
  root_.write("/proc/self/limits",
              "Limit                     Soft Limit           Hard Limit           Units\n"
              "Max locked memory         8388608              67108864             bytes\n"
              "Max open files            1024                 1048576              files\n");
  root_.write("/proc/self/status", "Name:\tterraced\nCapEff:\t0000000000000000\n");
  root_.write("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
  root_.write("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages", "1024\n");
  root_.write("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "512\n");
  const Machine machine = discover_or_fail();
  EXPECT_EQ(machine.memlock_bytes, 8 * kMiB) << "the soft limit is what is in effect";
  EXPECT_EQ(machine.open_files_max, 1024u);
  EXPECT_EQ(machine.kernel_version, "6.1.0-18-amd64");
  EXPECT_EQ(machine.numa_nodes[0].huge_pages_free, 0u);
  EXPECT_EQ(machine.numa_nodes[1].huge_pages_free, 512u);
  EXPECT_EQ(machine.numa_nodes[1].huge_pages, 1024u);
  EXPECT_EQ(machine.huge_pages(), 1024u);
  EXPECT_EQ(machine.huge_pages_free(), 512u);
}

TEST_F(Discover, ACapabilityLiftsTheLimitOnlyWhereTheRingHonoursIt) {
  root_.write("/proc/self/limits", "Max locked memory         8388608              8388608              bytes\n");
  root_.write("/proc/self/status", "CapEff:\t0000000000004000\n");  // CAP_IPC_LOCK alone
  EXPECT_EQ(discover_or_fail().memlock_bytes, kUnlimited);
  capability_counts_ = false;
  EXPECT_EQ(discover_or_fail().memlock_bytes, 8 * kMiB);
  root_.write("/proc/self/limits", kUnlimitedLocks);
  EXPECT_EQ(discover_or_fail().memlock_bytes, kUnlimited);
}

TEST_F(Discover, NamesAFileThatIsNoTopology) {
  root_.write("/garbage.xml", "<topology");
  const Result<Machine> machine = discover({root_.path(), root_.path() + "/garbage.xml", IoUring{}});
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().code, ErrorCode::kInternal);
}

TEST(DiscoverHere, FindsThisMachine) {
  const Result<Machine> machine = discover();
  ASSERT_TRUE(machine) << machine.error().message;
  ASSERT_THAT(machine->numa_nodes, testing::Not(IsEmpty()));
  EXPECT_GT(machine->memory_bytes, 64 * kMiB);
  EXPECT_LE(machine->memory_bytes, machine->memory_total_bytes);
  EXPECT_FALSE(machine->kernel_version.empty());
  std::size_t cpus = 0;
  for (const NumaNode& node : machine->numa_nodes) cpus += node.cpus.size();
  EXPECT_GT(cpus, 0u);
  // A ring is there or the reason why not is.
  if (machine->io_uring.available) {
    EXPECT_TRUE(machine->io_uring.has("ext_arg"));
    EXPECT_FALSE(machine->io_uring.has("no such feature"));
  } else {
    EXPECT_NE(machine->io_uring.system_error, 0);
    EXPECT_THAT(machine->io_uring.why_not, testing::Not(IsEmpty()));
  }
}

TEST(DiscoverHere, RaisingLimitsNeverLowersThem) {
  const Result<Machine> before = discover();
  raise_limits();
  const Result<Machine> after = discover();
  ASSERT_TRUE(before && after);
  EXPECT_GE(after->memlock_bytes, before->memlock_bytes);
  EXPECT_GE(after->open_files_max, before->open_files_max);
}

}  // namespace
}  // namespace terrace::topology
