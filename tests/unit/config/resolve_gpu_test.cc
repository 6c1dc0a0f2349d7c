// SPDX-License-Identifier: Apache-2.0
// Shows which GPUs a configuration's device tiers are: those that are asked for, with what each has, whether it works
// or not; and for sessions of a former daemon those that it had, whatever the driver gives now.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/bytes.h"
#include "config/resolve.h"
#include "unit/config/written.h"

namespace terrace::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

topology::Machine gpu_machine() {
  topology::Machine machine = limited_machine();
  machine.cuda.devices = {{"Fast", "0000:12:00.0", 80 * kGiB, 60 * kGiB},
                          {"Faster", "0000:13:00.0", 80 * kGiB, 79 * kGiB}};
  return machine;
}

std::string gpu_error_of(const std::string& text) {
  const Result<Config> config = resolve(config_of(text), gpu_machine());
  return config ? "" : config.error().message;
}

TEST(Resolve, RealGpusAreNotPretended) {
  topology::Machine machine = limited_machine();
  machine.cuda.why_not = "no CUDA driver: libcuda.so.1";
  for (const char* device : {"cuda:0", "cuda:all"}) {
    const Result<Config> config = resolve(config_of(device_tier(device, "80%")), machine);
    ASSERT_FALSE(config);
    EXPECT_THAT(config.error().message, AllOf(HasSubstr(device), HasSubstr("no CUDA driver: libcuda.so.1")));
  }
  const Result<Config> config = resolve(config_of(device_tier("auto", "1GiB")), machine);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->tiers[0].device, "emulated");
  ASSERT_THAT(config->warnings, SizeIs(1)) << "there is a GPU, and it is not used";
  EXPECT_THAT(config->warnings[0], AllOf(HasSubstr("H100"), HasSubstr("no CUDA driver")));
  EXPECT_FALSE(asks_for_gpus(config_of(device_tier("emulated", "1GiB") + memory_tier("1GiB"))));
  EXPECT_TRUE(asks_for_gpus(config_of(device_tier("auto", "1GiB"))));
}

TEST(Resolve, AutoAndAllAreATierForEachGpu) {
  for (const char* device : {"auto", "cuda:all"}) {
    const Result<Config> config = resolve(config_of(device_tier(device, "50%") + memory_tier("1GiB")), gpu_machine());
    ASSERT_TRUE(config) << config.error().message;
    ASSERT_THAT(config->tiers, SizeIs(3));
    EXPECT_EQ(config->tiers[0].device, "cuda:0");
    EXPECT_EQ(config->tiers[0].capacity.bytes, 40 * kGiB)
        << "of what it has, whatever is free: a restart must come to the same";
    EXPECT_EQ(config->tiers[1].device, "cuda:1");
    EXPECT_EQ(config->tiers[1].device_name, "Faster at 0000:13:00.0");
  }
}

Error failed(const std::string& why) { return {ErrorCode::kUnavailable, why, 0}; }

TEST(Resolve, AGpuThatFailsIsATierThatSaysSo) {
  const std::string why = "cuda:0 (Fast): cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE (214)";
  topology::Machine machine = gpu_machine();
  machine.cuda.devices[0] = {.name = "Fast", .pci_bus_id = {}, .failure = failed(why)};
  for (const char* device : {"auto", "cuda:all"}) {
    const Result<Config> config = resolve(config_of(device_tier(device, "50%") + memory_tier("90GiB")), machine);
    ASSERT_TRUE(config) << config.error().message;
    ASSERT_THAT(config->tiers, SizeIs(3));
    EXPECT_EQ(config->tiers[0].device, "cuda:0");
    EXPECT_EQ(config->tiers[0].failure.value().message, why);
    EXPECT_EQ(config->tiers[0].capacity.bytes, 40 * kGiB) << "as the other one, so that it is the same once it works";
    EXPECT_FALSE(config->tiers[1].failure);
    ASSERT_THAT(config->warnings, SizeIs(1));
    EXPECT_THAT(config->warnings[0], AllOf(HasSubstr("tier[0].device: is \"cuda:0\""), HasSubstr(why)));
    EXPECT_THAT(taken(*config)->tiers[0], AllOf(HasSubstr("cuda:0"), HasSubstr("NOT SERVING")));
  }
  machine.cuda.devices[1] = {.name = "Faster", .pci_bus_id = {}, .failure = failed("it fails too")};
  const Result<Config> all = resolve(config_of(device_tier("auto", "50%") + memory_tier("90GiB")), machine);
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->tiers[1].failure.value().message, "it fails too") << "and nothing is emulated";
  EXPECT_EQ(all->tiers[1].capacity.bytes, 2 * kMiB);
}

TEST(Resolve, AGpuThatIsNotConfiguredDoesNotMatter) {
  topology::Machine machine = gpu_machine();
  machine.cuda.devices[0] = {.name = "Fast", .pci_bus_id = {}, .failure = failed("it fails")};
  const Config written = config_of(device_tier("cuda:1", "1GiB") + memory_tier("1GiB"));
  EXPECT_FALSE(asks_for_gpu(written, 0));
  EXPECT_TRUE(asks_for_gpu(written, 1));
  const Result<Config> config = resolve(written, machine);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_THAT(config->warnings, SizeIs(0));
}

TEST(Resolve, ADriverThatFailsIsNoMissingOne) {
  topology::Machine machine = limited_machine();
  machine.cuda = {.devices = {}, .why_not = "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)", .broken = true};
  for (const char* device : {"auto", "cuda:all", "cuda:1"}) {
    const Result<Config> config = resolve(config_of(device_tier(device, "1GiB") + memory_tier("1GiB")), machine);
    ASSERT_TRUE(config) << config.error().message;
    ASSERT_THAT(config->tiers, SizeIs(2));
    EXPECT_THAT(config->tiers[0].device, HasSubstr("cuda:"));
    EXPECT_EQ(config->tiers[0].failure.value().message, machine.cuda.why_not);
  }
}

// The tiers' GPUs, of one that goes on for sessions of a daemon that had these.
std::vector<std::string> devices_after(topology::Machine machine, const std::string& text,
                                       const std::vector<std::uint64_t>& former) {
  const Config written = config_of(text);
  topology::go_on_with(machine.cuda, former);
  const Result<Config> config = resolve(written, machine);
  if (!config) return {config.error().message};
  std::vector<std::string> devices;
  for (const TierConfig& tier : config->tiers) {
    if (tier.kind != TierKind::kDevice) continue;
    const std::string who = tier.gpu() ? fmt::format(" is {}", tier.gpu_identity) : "";
    devices.push_back(tier.device + who + (tier.failure ? ": " + tier.failure->message : ""));
  }
  return devices;
}

TEST(Resolve, TheTierOfAGpuStaysItsWhateverItsNumber) {
  topology::Machine machine = gpu_machine();
  machine.cuda.devices[0].identity = 100;
  machine.cuda.devices[1].identity = 101;
  machine.cuda.devices[1].total_bytes = 40 * kGiB;
  const std::string rest = memory_tier("90GiB");
  const std::string each = device_tier("cuda:0", "20GiB") + device_tier("cuda:1", "60GiB") + rest;
  EXPECT_THAT(devices_after(machine, each, {101, 100}), ElementsAre("cuda:1 is 101", "cuda:0 is 100"))
      << "which the capacities fit";
  const std::string all = device_tier("cuda:all", "20GiB") + rest;
  EXPECT_THAT(devices_after(machine, all, {100, 101}), ElementsAre("cuda:0 is 100", "cuda:1 is 101"));
  EXPECT_THAT(devices_after(machine, device_tier("cuda:0", "20GiB") + rest, {101}), ElementsAre("cuda:1 is 101"));
  EXPECT_THAT(devices_after(machine, all, {topology::kUnknownGpu, 101}),
              ElementsAre(HasSubstr("is 1: a former daemon could not tell which GPU this was"), "cuda:1 is 101"));
  EXPECT_THAT(devices_after(machine, all, {101, 101}),
              ElementsAre("cuda:1 is 101", HasSubstr("is not there any more")));
  machine.cuda.devices[0] = {.name = "Fast", .pci_bus_id = {}, .failure = failed("it is sick")};
  EXPECT_THAT(devices_after(machine, all, {100, 101}), ElementsAre("cuda:0 is 100: it is sick", "cuda:1 is 101"));
  machine.cuda = {.devices = {}, .why_not = "no CUDA driver"};
  EXPECT_THAT(devices_after(machine, all, {topology::kUnknownGpu}),
              ElementsAre(HasSubstr("a former daemon could not")));
}

TEST(Resolve, AGpuThatIsGoneKeepsItsTierWhereSessionsGoOn) {
  topology::Machine machine = gpu_machine();
  machine.cuda.devices.erase(machine.cuda.devices.begin());
  machine.cuda.devices[0].identity = 101;
  const auto gone = AllOf(HasSubstr("is 100: a GPU that a former daemon had is not there any more"),
                          HasSubstr("gives this process 1"), Not(HasSubstr("cuda:0")));
  for (const char* device : {"auto", "cuda:all"})
    EXPECT_THAT(devices_after(machine, device_tier(device, "50%") + memory_tier("90GiB"), {100, 101}),
                ElementsAre(gone, "cuda:0 is 101"));
  EXPECT_THAT(devices_after(machine, device_tier("cuda:1", "1GiB") + memory_tier("90GiB"), {100}), ElementsAre(gone));
  machine.cuda = {.devices = {}, .why_not = "no CUDA driver: libcuda.so.1"};
  EXPECT_THAT(devices_after(machine, device_tier("auto", "1GiB") + memory_tier("90GiB"), {100}),
              ElementsAre(HasSubstr("is 100: a GPU that a former daemon had is not there any more: no CUDA driver")));
}

TEST(Resolve, SessionsGoOnWithAsManyGpusAsThereWere) {
  topology::Machine machine = gpu_machine();
  machine.cuda.devices[0].identity = 100;
  machine.cuda.devices[1].identity = 101;
  for (const char* device : {"auto", "cuda:all"})
    EXPECT_THAT(devices_after(machine, device_tier(device, "50%") + memory_tier("90GiB"), {101}),
                ElementsAre("cuda:1 is 101"));
  EXPECT_THAT(devices_after(machine, device_tier("auto", "1GiB") + memory_tier("90GiB"), {}), ElementsAre("emulated"));
  topology::go_on_with(machine.cuda, {101});
  const Result<Config> config =
      resolve(config_of(device_tier("auto", "50%", "take_back = \"give_up\"") + memory_tier("90GiB")), machine);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_THAT(config->warnings,
              ElementsAre(HasSubstr("there are 2 GPUs where a former daemon had 1: the others are used once"),
                          HasSubstr("would be cuda:0, and stays the GPU that a former daemon had here, cuda:1 now"),
                          HasSubstr("take_back: is \"give_up\": whenever the daemon is started again")));
}

TEST(Resolve, AGpusCapacityIsOfWhatItHas) {
  EXPECT_THAT(gpu_error_of(device_tier("cuda:0", "81GiB")),
              AllOf(HasSubstr("t.toml:3: tier[0].capacity"), HasSubstr("81 GiB"), HasSubstr("80 GiB")));
  EXPECT_THAT(gpu_error_of(device_tier("cuda:2", "1GiB")),
              AllOf(HasSubstr("t.toml:4: tier[0].device: "), HasSubstr("cuda:2"), HasSubstr("gives this process 2")));
  EXPECT_THAT(gpu_error_of(device_tier("cuda:0", "1GiB", "numa_node = 0")), HasSubstr("numa_node"));
  EXPECT_THAT(gpu_error_of(device_tier("cuda:0", "1GiB") + device_tier("cuda:all", "1GiB")), HasSubstr("cuda:0 again"));
  const Result<Config> tight = resolve(config_of(device_tier("cuda:0", "75GiB") + memory_tier("90GiB")), gpu_machine());
  ASSERT_TRUE(tight) << tight.error().message << ": a GPU's memory is not the machine's";
  ASSERT_THAT(tight->warnings, SizeIs(2));
  EXPECT_THAT(tight->warnings[0], AllOf(HasSubstr("75 GiB"), HasSubstr("60 GiB"), HasSubstr("are free")));
  EXPECT_THAT(tight->warnings[1], AllOf(HasSubstr("5 GiB"), HasSubstr("PyTorch")));
  EXPECT_THAT(taken(*tight)->tiers[0], AllOf(HasSubstr("cuda:0"), HasSubstr("Fast at 0000:12:00.0")));
}

}  // namespace
}  // namespace terrace::config
