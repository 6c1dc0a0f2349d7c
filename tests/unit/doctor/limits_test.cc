// SPDX-License-Identifier: Apache-2.0
// Shows what the checks of limits say: locked memory, descriptors, and cgroups of version 1 and 2.
#include "unit/doctor/made_node.h"

namespace terrace::doctor {
namespace {

using testing::ElementsAre;

class Limits : public MadeNode {};

TEST_F(Limits, MemlockCountsWhereThereIsABlockTier) {
  node_.machine.memlock_bytes = 8 * kMiB;
  EXPECT_THAT(check_memlock(node_), ElementsAre(is(kNotApplicable, "without a block tier")));
  add_block("/nowhere/block");
  EXPECT_THAT(check_memlock(node_), ElementsAre(is(kWarning, "memlock is 8 MiB", "LimitMEMLOCK=infinity")));
  node_.machine.memlock_bytes = 2 * kGiB;
  EXPECT_THAT(check_memlock(node_), ElementsAre(is(kOk, "memlock is 2 GiB")));
}

TEST_F(Limits, MemlockCountsBeforeThereIsAConfiguration) {
  node_.config_file.clear();
  node_.machine.memlock_bytes = 8 * kMiB;
  EXPECT_THAT(check_memlock(node_), ElementsAre(is(kWarning, "8 MiB")));
}

TEST_F(Limits, DescriptorsForAllConnections) {
  EXPECT_THAT(check_open_files(node_), ElementsAre(is(kOk, "unlimited")));
  node_.machine.open_files_max = 262'144;
  EXPECT_THAT(check_open_files(node_), ElementsAre(is(kOk, "262144 may be open")));
  node_.machine.open_files_max = 1024;
  node_.config.limits.connections_max = 100;  // as resolving lowered it
  EXPECT_THAT(check_open_files(node_), ElementsAre(is(kWarning, "512 connections", "LimitNOFILE=")));
  node_.refusal = Error{ErrorCode::kInvalidArgument, "no capacity", 0};
  EXPECT_THAT(check_open_files(node_), ElementsAre(is(kNotApplicable, "refused")));
}

TEST_F(Limits, MemoryOfACgroupOfVersionTwo) {
  write("/proc/self/cgroup", "0::/jobs/train\n");
  write("/sys/fs/cgroup/jobs/train/memory.max", "max\n");
  EXPECT_THAT(check_cgroup_memory(node_), ElementsAre(is(kNotApplicable, "no cgroup")));
  write("/sys/fs/cgroup/jobs/memory.max", "536870912\n");
  EXPECT_THAT(check_cgroup_memory(node_), ElementsAre(is(kFailure, "/sys/fs/cgroup/jobs/memory.max", "MemoryMax")));
  write("/sys/fs/cgroup/jobs/memory.max", std::to_string(kGiB + kMiB));
  EXPECT_THAT(check_cgroup_memory(node_), ElementsAre(is(kWarning, "less than 10 %", "capacity")));
  write("/sys/fs/cgroup/jobs/memory.max", std::to_string(4 * kGiB));
  EXPECT_THAT(check_cgroup_memory(node_), ElementsAre(is(kOk, "is 4 GiB")));
  write("/sys/fs/cgroup/jobs/train/memory.high", "536870912\n");
  EXPECT_THAT(check_cgroup_memory(node_), ElementsAre(is(kWarning, "memory.high", "MemoryHigh")));
}

TEST_F(Limits, MemoryOfACgroupOfVersionOne) {
  write("/proc/self/cgroup", "4:memory:/train\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_THAT(check_cgroup_memory(node_), ElementsAre(is(kNotApplicable, "no cgroup")));
  write("/sys/fs/cgroup/memory/train/memory.limit_in_bytes", "536870912\n");
  EXPECT_THAT(check_cgroup_memory(node_), ElementsAre(is(kFailure, "memory.limit_in_bytes")));
}

TEST_F(Limits, TiersOfGpusTakeNoMemory) {
  node_.config.tiers[0].device = "cuda:0";
  add_block("/nowhere/block");
  node_.machine.memlock_bytes = 8 * kMiB;
  EXPECT_THAT(check_memlock(node_), ElementsAre(is(kNotApplicable, "no tier lies in the machine's memory")));
}

TEST_F(Limits, WhatTheTiersComeToMayBeUnknown) {
  node_.refusal = Error{ErrorCode::kInvalidArgument, "no capacity", 0};
  node_.config.tiers.clear();
  node_.config_file.clear();
  node_.machine.memlock_bytes = 8 * kMiB;
  write("/proc/self/cgroup", "0::/train\n");
  write("/sys/fs/cgroup/train/memory.max", "536870912\n");
  for (const auto check : {check_memlock, check_cgroup_memory, check_huge_pages})
    EXPECT_THAT(check(node_), ElementsAre(is(kNotApplicable, "refused")));
}

TEST_F(Limits, ProcessorsOfACgroupOfVersionTwo) {
  write("/proc/self/cgroup", "0::/train\n");
  write("/sys/fs/cgroup/train/cpu.max", "max 100000\n");
  EXPECT_THAT(check_cgroup_cpu(node_), ElementsAre(is(kNotApplicable, "no cgroup")));
  write("/sys/fs/cgroup/train/cpu.max", "150000 100000\n");
  EXPECT_THAT(check_cgroup_cpu(node_), ElementsAre(is(kWarning, "1.5 of 8 processors", "CPUQuota=")));
  write("/sys/fs/cgroup/train/cpu.max", "600000 100000\n");
  EXPECT_THAT(check_cgroup_cpu(node_), ElementsAre(is(kOk, "6 of 8 processors")));
  node_.machine.numa_nodes[0].cpus.resize(224);
  write("/sys/fs/cgroup/train/cpu.max", "11250000 100000\n");
  EXPECT_THAT(check_cgroup_cpu(node_), ElementsAre(is(kOk, "112.5 of 224 processors")));
}

TEST_F(Limits, ProcessorsOfACgroupOfVersionOne) {
  write("/proc/self/cgroup", "1:cpu,cpuacct:/train\n");
  write("/sys/fs/cgroup/cpu/train/cpu.cfs_period_us", "100000\n");
  write("/sys/fs/cgroup/cpu/train/cpu.cfs_quota_us", "-1\n");
  EXPECT_THAT(check_cgroup_cpu(node_), ElementsAre(is(kNotApplicable, "no cgroup")));
  write("/sys/fs/cgroup/cpu/train/cpu.cfs_quota_us", "200000\n");
  EXPECT_THAT(check_cgroup_cpu(node_), ElementsAre(is(kWarning, "2 of 8 processors")));
}

}  // namespace
}  // namespace terrace::doctor
