// SPDX-License-Identifier: Apache-2.0
// Shows what the checks of io_uring and of the kernel's settings for memory and time say.
#include "unit/doctor/made_node.h"

namespace terrace::doctor {
namespace {

using testing::ElementsAre;

class Kernel : public MadeNode {
 protected:
  void set_huge(const std::string& enabled, const std::string& defrag) {
    write("/sys/kernel/mm/transparent_hugepage/enabled", enabled);
    write("/sys/kernel/mm/transparent_hugepage/defrag", defrag);
  }
  void set_clock(const std::string& current, const std::string& available) {
    write("/sys/devices/system/clocksource/clocksource0/current_clocksource", current + "\n");
    write("/sys/devices/system/clocksource/clocksource0/available_clocksource", available + "\n");
  }
};

TEST_F(Kernel, ARingThatWasMade) {
  EXPECT_THAT(check_io_uring(node_), ElementsAre(is(kOk, "a ring was made")));
  node_.machine.io_uring.features = {"read_fixed", "write_fixed"};
  EXPECT_THAT(check_io_uring(node_), ElementsAre(is(kWarning, "defer_taskrun", "6.1")));
  node_.machine.io_uring.features = {"defer_taskrun"};
  EXPECT_THAT(check_io_uring(node_), ElementsAre(is(kWarning, "fixed reads", "seccomp")));
}

TEST_F(Kernel, ARingThatOnlySomeMayMake) {
  write("/proc/sys/kernel/io_uring_disabled", "1\n");
  EXPECT_THAT(check_io_uring(node_), ElementsAre(is(kWarning, "io_uring_disabled is 1", "io_uring_disabled=0")));
}

TEST_F(Kernel, ARingThatIsRefused) {
  node_.machine.io_uring = {.available = false, .system_error = EPERM, .why_not = "it is refused", .features = {}};
  EXPECT_THAT(check_io_uring(node_), ElementsAre(is(kFailure, "it is refused", "Seccomp")));
  write("/proc/sys/kernel/io_uring_disabled", "2\n");
  EXPECT_THAT(check_io_uring(node_), ElementsAre(is(kFailure, "it is refused", "io_uring_disabled=0")));
}

TEST_F(Kernel, HugePages) {
  EXPECT_THAT(check_huge_pages(node_), ElementsAre(is(kWarning, "0 of 2 MiB are reserved", "vm.nr_hugepages=512")));
  node_.config.tiers[0].huge_pages = config::HugePages::k2MiB;
  EXPECT_THAT(check_huge_pages(node_), ElementsAre(is(kFailure, "does not start", "vm.nr_hugepages=512")));
  node_.machine.numa_nodes[0].huge_pages = 512;
  EXPECT_THAT(check_huge_pages(node_), ElementsAre(is(kOk, "512 of 2 MiB")));
  node_.config.tiers[0].huge_pages = config::HugePages::kNever;
  EXPECT_THAT(check_huge_pages(node_), ElementsAre(is(kNotApplicable, "no tier")));
}

TEST_F(Kernel, TransparentHugePages) {
  EXPECT_THAT(check_transparent_huge_pages(node_), ElementsAre(is(kNotApplicable, "none")));
  set_huge("always [madvise] never\n", "always defer [madvise] never\n");
  EXPECT_THAT(check_transparent_huge_pages(node_), ElementsAre(is(kOk, "enabled is madvise")));
  set_huge("[always] madvise never\n", "[always] defer madvise never\n");
  EXPECT_THAT(check_transparent_huge_pages(node_), ElementsAre(is(kWarning, "defrag is always", "echo madvise")));
}

TEST_F(Kernel, Swap) {
  write("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n");
  EXPECT_THAT(check_swap(node_), ElementsAre(is(kOk, "nothing swaps")));
  write("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2    partition\t8\t0\t-2\n");
  EXPECT_THAT(check_swap(node_), ElementsAre(is(kWarning, "/dev/sda2 swap", "swapoff -a")));
  write("/proc/self/cgroup", "0::/terraced\n");
  write("/sys/fs/cgroup/terraced/memory.swap.max", "0\n");
  EXPECT_THAT(check_swap(node_), ElementsAre(is(kOk, "memory.swap.max")));
}

TEST_F(Kernel, NumaBalancing) {
  write("/proc/sys/kernel/numa_balancing", "1\n");
  EXPECT_THAT(check_numa_balancing(node_), ElementsAre(is(kNotApplicable, "one NUMA node")));
  node_.machine.numa_nodes.push_back({.os_index = 1, .bytes = kGiB, .cpus = {8}});
  EXPECT_THAT(check_numa_balancing(node_), ElementsAre(is(kWarning, "is 1", "kernel.numa_balancing=0")));
  write("/proc/sys/kernel/numa_balancing", "0\n");
  EXPECT_THAT(check_numa_balancing(node_), ElementsAre(is(kOk, "is 0")));
}

TEST_F(Kernel, ClockSource) {
  EXPECT_THAT(check_clock_source(node_), ElementsAre(is(kNotApplicable, "does not say")));
  set_clock("tsc", "tsc hpet acpi_pm");
  EXPECT_THAT(check_clock_source(node_), ElementsAre(is(kOk, "tsc")));
  set_clock("hpet", "hpet tsc acpi_pm");
  EXPECT_THAT(check_clock_source(node_), ElementsAre(is(kWarning, "it is hpet", "echo tsc > ")));
  set_clock("hpet", "hpet acpi_pm");
  EXPECT_THAT(check_clock_source(node_), ElementsAre(is(kWarning, "it is hpet", "journalctl -k")));
}

}  // namespace
}  // namespace terrace::doctor
