// SPDX-License-Identifier: Apache-2.0
// Shows that a block tier's path is followed to its disks and their NUMA node (partitions and volumes included, on a
// made-up /sys), and that its room and O_DIRECT alignment are found without harm to a file that is there.

#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/bytes.h"
#include "base/fd.h"
#include "topology/block_path.h"
#include "unit/topology/fake_root.h"

namespace terrace::topology {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DisksUnder : public testing::Test {
 protected:
  // An NVMe drive with a partition, on a PCI device of `node`.
  void add_drive(const std::string& name, const std::string& numbers, const std::string& node) {
    const std::string pci = "/sys/devices/pci0000:00/" + name + "-pci";
    root_.write(pci + "/numa_node", node + "\n");
    root_.write(pci + "/block/" + name + "/dev", numbers + "\n");
    root_.write(pci + "/block/" + name + "/" + name + "p1/partition", "1\n");
    link("/sys/dev/block/" + numbers, pci + "/block/" + name);
    link("/sys/dev/block/" + numbers.substr(0, numbers.find(":")) + ":1", pci + "/block/" + name + "/" + name + "p1");
  }

  void link(const std::string& from, const std::string& to) {
    fs::create_directories(fs::path(root_.path() + from).parent_path());
    fs::create_directory_symlink(root_.path() + to, root_.path() + from);
  }

  static std::vector<std::string> names(const std::vector<BlockDevice>& disks) {
    std::vector<std::string> result;
    for (const BlockDevice& disk : disks) result.push_back(disk.name);
    return result;
  }

  FakeRoot root_;
};

TEST_F(DisksUnder, LeadsFromAPartitionToItsDiskAndNode) {
  add_drive("nvme0n1", "259:0", "1");
  for (const unsigned minor : {0u, 1u}) {
    const std::vector<BlockDevice> disks = disks_under(259, minor, root_.path());
    ASSERT_THAT(names(disks), ElementsAre("nvme0n1"));
    EXPECT_EQ(disks[0].numa_node, 1u);
  }
}

TEST_F(DisksUnder, LeadsFromAVolumeToAllItsDisks) {
  add_drive("nvme0n1", "259:0", "0");
  add_drive("nvme1n1", "260:0", "1");
  root_.write("/sys/devices/virtual/block/md0/dev", "9:0\n");
  link("/sys/dev/block/9:0", "/sys/devices/virtual/block/md0");
  link("/sys/devices/virtual/block/md0/slaves/nvme0n1p1",
       "/sys/devices/pci0000:00/nvme0n1-pci/block/nvme0n1/nvme0n1p1");
  link("/sys/devices/virtual/block/md0/slaves/nvme1n1", "/sys/devices/pci0000:00/nvme1n1-pci/block/nvme1n1");
  EXPECT_THAT(names(disks_under(9, 0, root_.path())), testing::UnorderedElementsAre("nvme0n1", "nvme1n1"));
}

TEST_F(DisksUnder, AVolumeOfItselfEnds) {
  root_.write("/sys/devices/virtual/block/md0/dev", "9:0\n");
  link("/sys/dev/block/9:0", "/sys/devices/virtual/block/md0");
  link("/sys/devices/virtual/block/md0/slaves/md0", "/sys/devices/virtual/block/md0");
  EXPECT_THAT(disks_under(9, 0, root_.path()), IsEmpty());
}

TEST_F(DisksUnder, TheKernelsMinusOneIsNoNode) {
  add_drive("vda", "254:0", "-1");
  const std::vector<BlockDevice> disks = disks_under(254, 0, root_.path());
  ASSERT_THAT(names(disks), ElementsAre("vda"));
  EXPECT_EQ(disks[0].numa_node, std::nullopt);
  EXPECT_THAT(disks_under(255, 255, root_.path()), IsEmpty());
}

TEST(BlockPathTest, FindsRoomAndAlignmentWhereAFileIsToBeMade) {
  const FakeRoot folder;
  const Result<BlockPath> block = inspect_block_path(folder.path() + "/terrace.block");
  ASSERT_TRUE(block) << block.error().message;
  EXPECT_GT(block->room_bytes, 0u);
  EXPECT_FALSE(block->file_system.empty());
  if (block->direct_io.supported) {
    EXPECT_GT(block->direct_io.offset_alignment_bytes, 0u);
    EXPECT_EQ(kPageBytes % block->direct_io.memory_alignment_bytes, 0u);
  } else {
    EXPECT_FALSE(block->direct_io.why_not.empty());
  }
  EXPECT_TRUE(fs::is_empty(folder.path())) << "the trial file is gone";
}

TEST(BlockPathTest, LeavesAFileThatIsThereAsItWas) {
  FakeRoot folder;
  const std::string text(8192, 'x');
  folder.write("/terrace.block", text);
  const std::string path = folder.path() + "/terrace.block";
  const Result<BlockPath> block = inspect_block_path(path);
  ASSERT_TRUE(block) << block.error().message;
  std::ostringstream after;
  after << std::ifstream(path).rdbuf();
  EXPECT_EQ(after.str(), text);
  const Result<BlockRoom> room = block_room(path);
  ASSERT_TRUE(room);
  EXPECT_EQ(block->file_system_id, room->file_system_id);
}

// Of memory, where the kernel does not say how direct I/O is aligned.
TEST(BlockPathTest, TriesNothingOnAFileThatADaemonHolds) {
  const Fd memory(::memfd_create("block", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(memory.get(), 8192), 0);
  const std::string path = "/proc/self/fd/" + std::to_string(memory.get());
  const Result<BlockPath> free = inspect_block_path(path);
  ASSERT_TRUE(free) << free.error().message;
  ASSERT_EQ(::flock(memory.get(), LOCK_EX | LOCK_NB), 0) << "and leaves it free";
  const Result<BlockPath> held = inspect_block_path(path);
  ASSERT_TRUE(held) << held.error().message;
  EXPECT_EQ(held->direct_io.source, free->direct_io.source == "probe" ? "holder" : free->direct_io.source);
  EXPECT_TRUE(held->direct_io.supported);
}

TEST(BlockPathTest, NamesAFolderThatIsMissing) {
  const FakeRoot folder;
  const Result<BlockPath> block = inspect_block_path(folder.path() + "/missing/terrace.block");
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(block.error().message, HasSubstr(folder.path() + "/missing"));
}

TEST(BlockPathTest, RefusesWhatIsNoFile) {
  const FakeRoot folder;
  fs::create_directory(folder.path() + "/block");
  const Result<BlockPath> block = inspect_block_path(folder.path() + "/block");
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(block.error().message, HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace terrace::topology
