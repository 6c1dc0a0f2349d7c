// SPDX-License-Identifier: Apache-2.0
// Shows what is said of a block tier's paths, by real files on the build's disk, and that looking leaves nothing there.
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>

#include "doctor/block_trial.h"
#include "topology/block_path.h"
#include "unit/doctor/made_node.h"

namespace terrace::doctor {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class Block : public MadeNode {
 protected:
  Block() {
    std::string name = TEST_DISK "/doctor-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    disk_ = name;
  }
  ~Block() override { fs::remove_all(disk_); }

  // Has the made /proc say that the disk is of that file system.
  void call_file_system(const std::string& name) {
    struct stat status{};
    ASSERT_EQ(::stat(disk_.c_str(), &status), 0);
    write("/proc/self/mountinfo",
          fmt::format("1 0 {}:{} / / rw - {} none rw\n", major(status.st_dev), minor(status.st_dev), name));
  }

  fs::path disk_;
};

TEST_F(Block, WithoutABlockTierThereIsNothingToTry) {
  EXPECT_THAT(check_block_path(node_), ElementsAre(is(kNotApplicable, "no block tier")));
  EXPECT_THAT(check_block_room(node_), ElementsAre(is(kNotApplicable, "no block tier")));
}

TEST_F(Block, OfARefusedConfigurationNoTierIsMissed) {
  node_.refusal = Error{ErrorCode::kInvalidArgument, "no TOML", 0};
  EXPECT_THAT(check_block_path(node_), ElementsAre(is(kNotApplicable, "the tiers are unknown")));
  EXPECT_THAT(check_block_room(node_), ElementsAre(is(kNotApplicable, "the tiers are unknown")));
}

TEST_F(Block, NoFolderThatIsThereIsToBeMadeAnothersOwn) {
  add_block("/sys/terrace.block");
  for (const Finding& found : check_block_path(node_)) {
    EXPECT_THAT(found, is(kFailure, "/sys", "local drive"));
    EXPECT_THAT(found.mend, testing::Not(testing::HasSubstr("install")));
  }
}

TEST_F(Block, ABlockIsWrittenAndReadBackAndNothingIsLeft) {
  call_file_system("ext4");
  add_block(disk_ / "block");
  EXPECT_THAT(check_block_path(node_), ElementsAre(is(kOk, "1 MiB were written with O_DIRECT on ext4")));
  EXPECT_TRUE(fs::is_empty(disk_));
}

TEST_F(Block, MemoryIsNoDrive) {
  call_file_system("tmpfs");
  add_block(disk_ / "block");
  EXPECT_THAT(check_block_path(node_), ElementsAre(is(kWarning, "lies in memory", "local drive")));
}

TEST_F(Block, DrivesOfUnknownNodes) {
  call_file_system("xfs");
  node_.machine.numa_nodes.push_back({.os_index = 1, .bytes = kGiB, .cpus = {8}});
  add_block(disk_ / "block");
  EXPECT_THAT(check_block_path(node_), ElementsAre(is(kWarning, "NUMA node")));
}

TEST_F(Block, AFolderThatIsNotThere) {
  add_block(disk_ / "no" / "block");
  const std::string mend = fmt::format("install -d -o terrace -g terrace -m 0700 {}", (disk_ / "no").string());
  EXPECT_THAT(check_block_path(node_), ElementsAre(is(kFailure, "must be there", mend)));
  EXPECT_THAT(check_block_room(node_), ElementsAre(is(kFailure, "must be there", mend)));
}

TEST_F(Block, AFileThatIsSomebodys) {
  std::ofstream(disk_ / "thesis") << "a thesis";
  add_block(disk_ / "thesis");
  EXPECT_THAT(check_block_path(node_), ElementsAre(is(kFailure, "thesis", "paths")));
  EXPECT_EQ(fs::file_size(disk_ / "thesis"), 8u);
}

TEST_F(Block, WhatAnotherUserMayDoIsNotKnown) {
  node_.is_root = false;
  EXPECT_TRUE(is_for_want_of_rights(node_, {ErrorCode::kPermissionDenied, "", EACCES}));
  EXPECT_FALSE(is_for_want_of_rights(node_, {ErrorCode::kPermissionDenied, "", EROFS}));
  node_.is_root = true;
  EXPECT_FALSE(is_for_want_of_rights(node_, {ErrorCode::kPermissionDenied, "", EACCES}));
}

TEST_F(Block, Room) {
  add_block(disk_ / "block");
  EXPECT_THAT(check_block_room(node_), ElementsAre(is(kOk, "are to have 16 MiB")));
  node_.config.tiers[1].capacity.bytes = 900'000 * kGiB;
  EXPECT_THAT(check_block_room(node_), ElementsAre(is(kFailure, "there is room for", "capacity")));
  const auto room = topology::block_room(disk_ / "block");
  ASSERT_TRUE(room);
  node_.config.tiers[1].capacity.bytes = room->free_bytes - room->free_bytes / 100;
  EXPECT_THAT(check_block_room(node_), ElementsAre(is(kWarning, "less than 5 %", "capacity")));
  node_.config.tiers[1].capacity.bytes = 0;
  EXPECT_THAT(check_block_room(node_), ElementsAre(is(kNotApplicable, "refused")));
}

TEST_F(Block, FilesOfOneFileSystemShareItsRoom) {
  add_block(disk_ / "a");
  node_.config.tiers[1].paths.push_back(disk_ / "b");
  EXPECT_THAT(check_block_room(node_), ElementsAre(is(kOk, "are to have 16 MiB")));
}

TEST_F(Block, ATrialSaysWhichStepFailed) {
  const auto tried = try_block("/proc");
  ASSERT_FALSE(tried);
  EXPECT_THAT(tried.error().message, testing::HasSubstr("opening a file with O_DIRECT failed"));
}

}  // namespace
}  // namespace terrace::doctor
