// SPDX-License-Identifier: Apache-2.0
// Shows that every lack is named with its cost and cure, that strict makes each an error, that what the daemon cannot
// run without always is one, and that the report of the largest node fits one screen.

#include "topology/report.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "base/bytes.h"

namespace terrace::topology {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

Machine rich_machine() {
  Machine machine;
  machine.numa_nodes = {{0, 512 * kGiB, {0, 1, 2, 3, 8}, 262144, 262144},
                        {1, 512 * kGiB, {4, 5, 6, 7}, 262144, 262144}};
  for (unsigned i = 0; i < 8; ++i) machine.gpus.push_back({"0000:" + std::to_string(10 + i) + ":00.0", "H100", i / 4});
  machine.block_devices = {{"nvme0n1", 0}, {"nvme1n1", std::nullopt}};
  machine.memory_bytes = machine.memory_total_bytes = 1024 * kGiB;
  machine.memory_limit_source = "MemTotal";
  machine.memlock_bytes = kUnlimited;
  machine.kernel_version = "6.1.0";
  machine.io_uring.available = true;
  machine.io_uring.features = {"ext_arg", "single_issuer", "defer_taskrun", "read_fixed", "write_fixed"};
  machine.io_uring.registers_slice = true;
  return machine;
}

BlockPath good_block() {
  BlockPath block;
  block.path = "/scratch/terrace.block";
  block.file_system = "ext4";
  block.devices = {"nvme0n1"};
  block.numa_node = 0;
  block.room_bytes = 7 * kGiB * kKiB;
  block.direct_io = {true, 512, 4096, "statx", ""};
  return block;
}

Taken all() { return {{"memory, 512 GiB", "block, 2 TiB"}, 512 * kGiB, 512 * kGiB, {good_block()}}; }

// The only lack of `machine`, which strict turns into an error of the same words.
Lack only_lack(const Machine& machine, const Taken& taken) {
  const std::vector<Lack> found = lacks(machine, taken);
  EXPECT_THAT(found, SizeIs(1));
  if (found.size() != 1) return {};
  EXPECT_FALSE(found[0].cost.empty());
  EXPECT_FALSE(found[0].cure.empty());
  EXPECT_TRUE(require(machine, taken, false));
  const Result<void> strict = require(machine, taken, true);
  EXPECT_FALSE(strict);
  if (!strict) {
    EXPECT_EQ(strict.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_THAT(strict.error().message, AllOf(HasSubstr(found[0].what), HasSubstr(found[0].cure)));
  }
  EXPECT_THAT(describe(machine, taken, found), AllOf(HasSubstr(found[0].what), HasSubstr(found[0].cost)));
  return found[0];
}

TEST(Report, ARichMachineLacksNothing) {
  EXPECT_THAT(lacks(rich_machine(), all()), IsEmpty());
  EXPECT_TRUE(require(rich_machine(), all(), true));
}

TEST(Report, NamesMemlock) {
  Machine machine = rich_machine();
  machine.memlock_bytes = 8 * kMiB;
  EXPECT_THAT(only_lack(machine, all()).what, AllOf(HasSubstr("8 MiB"), HasSubstr("512 GiB")));
}

TEST(Report, MemlockIsNoLackWithoutBlockTier) {
  Machine machine = rich_machine();
  machine.memlock_bytes = 8 * kMiB;
  Taken taken = all();
  taken.pinned_bytes = 0;
  taken.block_paths.clear();
  EXPECT_THAT(lacks(machine, taken), IsEmpty());
}

TEST(Report, NamesHugePages) {
  Machine machine = rich_machine();
  machine.numa_nodes[0].huge_pages_free = 1;
  EXPECT_THAT(lacks(machine, all()), IsEmpty()) << "they may be a former daemon's";
  for (NumaNode& node : machine.numa_nodes) node.huge_pages = node.huge_pages_free = 1;
  const Lack lack = only_lack(machine, all());
  EXPECT_EQ(lack.what, "262144 huge pages of 2 MiB wanted, 2 reserved, 2 free");
  EXPECT_THAT(lack.cure, HasSubstr("vm.nr_hugepages=262144"));
}

TEST(Report, NamesFeaturesOfIoUring) {
  Machine machine = rich_machine();
  std::erase(machine.io_uring.features, "defer_taskrun");
  EXPECT_THAT(only_lack(machine, all()).what, HasSubstr("defer_taskrun"));
  machine = rich_machine();
  std::erase(machine.io_uring.features, "write_fixed");
  EXPECT_THAT(only_lack(machine, all()).what, HasSubstr("fixed"));
}

TEST(Report, NamesABlockFileInMemory) {
  Taken taken = all();
  taken.block_paths[0].file_system = "tmpfs";
  EXPECT_THAT(only_lack(rich_machine(), taken).what, AllOf(HasSubstr("/scratch/terrace.block"), HasSubstr("tmpfs")));
}

TEST(Report, NamesAnAlignmentThatTheKernelDoesNotSay) {
  Taken taken = all();
  taken.block_paths[0].direct_io = {true, 4096, 4096, "probe", ""};
  EXPECT_THAT(only_lack(rich_machine(), taken).what, HasSubstr("STATX_DIOALIGN"));
}

TEST(Report, NamesABlockPathOfUnknownNodeWhereThereAreSeveral) {
  Taken taken = all();
  taken.block_paths[0].numa_node.reset();
  EXPECT_THAT(only_lack(rich_machine(), taken).what, HasSubstr("/scratch/terrace.block"));
  Machine machine = rich_machine();
  machine.numa_nodes.resize(1);
  taken.huge_page_bytes = 0;
  EXPECT_THAT(lacks(machine, taken), IsEmpty());
}

TEST(Report, NoIoUringIsAlwaysAnError) {
  Machine machine = rich_machine();
  machine.io_uring = {
      .available = false, .system_error = 1, .why_not = "it is forbidden", .features = {}, .registers_slice = false};
  const Result<void> result = require(machine, all(), false);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, AllOf(HasSubstr("io_uring"), HasSubstr("it is forbidden")));
  EXPECT_EQ(result.error().system_error, 1);
}

TEST(Report, ABlockPathThatODirectCannotServeIsAlwaysAnError) {
  Taken taken = all();
  taken.block_paths[0].direct_io = {false, 0, 0, "probe", "Invalid argument"};
  taken.block_paths.push_back(good_block());
  taken.block_paths[1].path = "/other/terrace.block";
  taken.block_paths[1].direct_io.offset_alignment_bytes = 65536;
  const Result<void> result = require(rich_machine(), taken, false);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, AllOf(HasSubstr("/scratch/terrace.block: the file system (ext4) has no O_DIRECT"),
                                            HasSubstr("/other/terrace.block: O_DIRECT is aligned to 64 KiB")));
}

TEST(Report, FitsOneScreenAndSaysWhatItFound) {
  Machine machine = rich_machine();
  machine.memory_bytes = 256 * kGiB;
  machine.memory_limit_source = "cgroup /sys/fs/cgroup/jobs/memory.max";
  machine.memlock_bytes = 8 * kMiB;
  const std::vector<Lack> missing = lacks(machine, all());
  const std::string text = describe(machine, all(), missing);
  EXPECT_LE(std::ranges::count(text, '\n'), 24);
  for (const char* part :
       {"256 GiB of 1 TiB, by cgroup /sys/fs/cgroup/jobs/memory.max", "CPUs 0-3,8",
        "262144 huge pages of 2 MiB, 262144 of them free", "0000:17:00.0 H100 (node 1)", "nvme0n1 (node 0)",
        "nvme1n1 (node unknown)", "defer_taskrun", "memory, 512 GiB", "512 B in memory and 4 KiB on disk (by statx)",
        "memlock    8 MiB", "ext4 on nvme0n1 (node 0)"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

}  // namespace
}  // namespace terrace::topology
