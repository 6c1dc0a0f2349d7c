// SPDX-License-Identifier: Apache-2.0
// Shows that memory is taken near the GPUs first where all of them hang off one node, which hwloc knows by their PCI
// bus ids, and that a configured node which some GPU is not near is warned of.
#include <gmock/gmock.h>

#include <cctype>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "topology/machine.h"
#include "unit/config/written.h"
#include "unit/topology/fake_root.h"

namespace terrace::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// The GPUs' bus ids are written as the driver does, those of the machine as the kernel does.
topology::Machine gpus_at(std::vector<std::optional<unsigned>> nodes) {
  topology::Machine machine = limited_machine();
  machine.gpus.clear();
  for (std::size_t gpu = 0; gpu < nodes.size(); ++gpu) {
    machine.gpus.push_back({std::string("0000:") + "ab"[gpu] + "f:00.0", "H100", nodes[gpu]});
    machine.cuda.devices.push_back({"Fast", std::string("0000:") + "AB"[gpu] + "F:00.0", 80 * kGiB, 80 * kGiB});
  }
  return machine;
}

TEST(ResolveNuma, MemoryIsTakenNearTheGpusWhereTheyAreTogether) {
  const auto near = [](const std::string& tiers, const topology::Machine& machine) {
    const Result<Config> config = resolve(config_of(tiers), machine);
    EXPECT_TRUE(config) << config.error().message;
    EXPECT_THAT(config->warnings, IsEmpty());
    EXPECT_EQ(config->tiers.back().numa_node, std::nullopt);
    const auto processors = processors_near_memory(*config, machine);
    EXPECT_EQ(processors,
              config->tiers.back().near_node == 1 ? std::vector<unsigned>({2, 3}) : std::vector<unsigned>{});
    EXPECT_THAT(taken(*config)->tiers.back(),
                HasSubstr(config->tiers.back().near_node ? "any node, the GPUs' 1 first" : "any node, huge"));
    return config->tiers.back().near_node;
  };
  const std::string all = device_tier("cuda:all", "1GiB");
  const std::string memory = memory_tier("90GiB", "numa_node = \"auto\"");
  EXPECT_EQ(near(all + memory, gpus_at({1, 1})), 1U);
  EXPECT_EQ(near(all + memory_tier("90GiB"), gpus_at({1, 1})), 1U);
  EXPECT_EQ(near(all + memory, gpus_at({0, 1})), std::nullopt);
  EXPECT_EQ(near(device_tier("cuda:1", "1GiB") + memory, gpus_at({0, 1})), 1U) << "the other one is nobody's";
  EXPECT_EQ(near(all + memory, gpus_at({1, {}})), std::nullopt) << "where one is, is not known";
  EXPECT_EQ(near(device_tier("emulated", "1GiB") + memory, gpus_at({1, 1})), std::nullopt);
  topology::Machine one_node = gpus_at({0});
  one_node.numa_nodes.pop_back();
  EXPECT_EQ(near(all + memory, one_node), std::nullopt);
  topology::Machine elsewhere = gpus_at({1});
  elsewhere.gpus[0].pci_bus_id = "0000:01:00.0";
  EXPECT_EQ(near(all + memory, elsewhere), std::nullopt) << "hwloc does not see that GPU";
}

TEST(ResolveNuma, AGpusNodeIsThatOfItsBusIdInHwloc) {
  const topology::FakeRoot root;
  Result<topology::Machine> machine = topology::discover({root.path(), TERRACE_MACHINE, topology::IoUring()});
  ASSERT_TRUE(machine) << machine.error().message;
  for (const topology::Gpu& gpu : machine->gpus) {
    std::string as_the_driver_has_it = gpu.pci_bus_id;
    for (char& letter : as_the_driver_has_it) letter = static_cast<char>(std::toupper(letter));
    machine->cuda.devices.push_back({"Fast", as_the_driver_has_it, 80 * kGiB, 80 * kGiB});
  }
  const auto near = [&](unsigned first, unsigned last) {
    std::string tiers;
    for (unsigned gpu = first; gpu <= last; ++gpu) tiers += device_tier("cuda:" + std::to_string(gpu), "1GiB");
    const Result<Config> config = resolve(config_of(tiers + memory_tier("10GiB")), *machine);
    EXPECT_TRUE(config) << config.error().message;
    return config->tiers.back().near_node;
  };
  EXPECT_EQ(near(0, 3), 0U);
  EXPECT_EQ(near(4, 7), 1U);
  EXPECT_EQ(near(3, 4), std::nullopt);
}

TEST(ResolveNuma, MemoryThatIsFarFromAGpuIsWarnedOf) {
  const std::string tiers = device_tier("cuda:all", "1GiB") + memory_tier("10GiB", "numa_node = 0");
  const topology::Machine machine = gpus_at({0, 1});
  const Result<Config> config = resolve(config_of(tiers), machine);
  ASSERT_TRUE(config) << config.error().message;
  ASSERT_THAT(config->warnings, SizeIs(1));
  EXPECT_THAT(config->warnings[0], AllOf(HasSubstr("tier[1].numa_node: is 0"),
                                         HasSubstr("near cuda:1 at 0000:BF:00.0 (node 1): "), HasSubstr("\"auto\"")));
  EXPECT_EQ(config->tiers.back().near_node, std::nullopt);
  EXPECT_EQ(processors_near_memory(*config, machine), std::vector<unsigned>({0, 1}));
  EXPECT_THAT(resolve(config_of(tiers), gpus_at({0, 0}))->warnings, IsEmpty());
  // Memory without processors is chosen, and near to no GPU.
  topology::Machine with_cxl = gpus_at({1});
  with_cxl.numa_nodes.push_back({2, 128 * kGiB, {}, 0, 0});
  const std::string cxl = device_tier("cuda:all", "1GiB") + memory_tier("10GiB", "numa_node = 2");
  EXPECT_THAT(resolve(config_of(cxl), with_cxl)->warnings, IsEmpty());
}

}  // namespace
}  // namespace terrace::config
