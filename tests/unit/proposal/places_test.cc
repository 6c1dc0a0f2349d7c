// SPDX-License-Identifier: Apache-2.0
// Shows which of a made machine's file systems are taken for block files, and what a user may name.
#include "proposal/places.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <map>

#include "base/bytes.h"
#include "unit/topology/fake_root.h"

namespace terrace::proposal {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

class Places : public testing::Test {
 protected:
  void add_drive(unsigned minor, const std::string& name, bool rotates = false) {
    root_.write(fmt::format("/sys/devices/{}/queue/rotational", name), rotates ? "1\n" : "0\n");
    fs::create_directories(root_.path() + "/sys/dev/block");
    fs::create_directories(root_.path() + "/sys/class/block");
    const std::string folder = root_.path() + "/sys/devices/" + name;
    fs::create_directory_symlink(folder, fmt::format("{}/sys/dev/block/9:{}", root_.path(), minor));
    fs::create_directory_symlink(folder, fmt::format("{}/sys/class/block/{}", root_.path(), name));
  }
  void mount(unsigned minor, const std::string& point, std::uint64_t room_bytes,
             const std::string& file_system = "ext4", const std::string& options = "rw,relatime") {
    fs::create_directories(root_.path() + point);
    mounts_ += fmt::format("1 0 9:{} / {} {} shared:1 - {} /dev/x rw\n", minor, point, options, file_system);
    room_[(point == "/" ? "" : point) + "/terrace.block"] = room_bytes;
  }
  std::vector<std::string> found() {
    root_.write("/proc/self/mountinfo", mounts_);
    std::vector<std::string> paths;
    for (const Place& place : find_places(root_.path(), [this](const std::string& path) -> Result<topology::BlockRoom> {
           return topology::BlockRoom{.file_system_id = 0, .free_bytes = room_.at(path), .held_bytes = 0};
         }))
      paths.push_back(place.path);
    return paths;
  }

  topology::FakeRoot root_;
  std::string mounts_;
  std::map<std::string, std::uint64_t> room_;
};

TEST_F(Places, TheSystemsDriveWhereThereIsNoOther) {
  add_drive(0, "sda");
  mount(0, "/", 100 * kGiB);
  EXPECT_THAT(found(), ElementsAre("/var/lib/terrace/terrace.block"));
}

TEST_F(Places, ThoseForDataAreTakenBeforeTheSystems) {
  add_drive(0, "nvme0n1");
  add_drive(1, "nvme1n1");
  add_drive(2, "nvme2n1");
  mount(0, "/", 100 * kGiB);
  mount(1, "/scratch/a", 3000 * kGiB, "xfs");
  mount(2, "/scratch/b", 2900 * kGiB);
  EXPECT_THAT(found(), ElementsAre("/scratch/a/terrace/terrace.block", "/scratch/b/terrace/terrace.block"));
}

TEST_F(Places, TheFastestKindAlone) {
  add_drive(0, "sda", true);
  add_drive(1, "sdb");
  add_drive(2, "nvme0n1");
  mount(0, "/big", 9000 * kGiB);
  mount(1, "/quick", 900 * kGiB);
  EXPECT_THAT(found(), ElementsAre("/quick/terrace/terrace.block"));
  mount(2, "/scratch", 800 * kGiB);
  EXPECT_THAT(found(), ElementsAre("/scratch/terrace/terrace.block"));
}

TEST_F(Places, WhatCannotBeWrittenOrIsSomebodysIsLeft) {
  add_drive(0, "nvme0n1");
  mount(0, "/boot", kGiB);
  mount(0, "/home", kGiB);
  mount(0, "/image", kGiB, "ext4", "ro,relatime");
  mount(0, "/network", kGiB, "nfs4");
  mount(7, "/no/drive", kGiB);
  EXPECT_THAT(found(), IsEmpty());
}

TEST_F(Places, OneForADriveAndAFileSystem) {
  add_drive(0, "nvme0n1");
  mount(0, "/data/volumes/x", 100 * kGiB);
  mount(0, "/data", 100 * kGiB);
  EXPECT_THAT(found(), ElementsAre("/data/terrace/terrace.block"));
}

TEST_F(Places, ASmallOneWouldBoundTheOthers) {
  add_drive(0, "nvme0n1");
  add_drive(1, "nvme1n1");
  mount(0, "/large", 1000 * kGiB);
  mount(1, "/small", 10 * kGiB);
  EXPECT_THAT(found(), ElementsAre("/large/terrace/terrace.block"));
}

TEST_F(Places, BlanksInNames) {
  add_drive(0, "nvme0n1");
  fs::create_directories(root_.path() + "/my data");
  mounts_ = "1 0 9:0 / /my\\040data rw - xfs /dev/x rw\n";
  room_["/my data/terrace.block"] = kGiB;
  EXPECT_THAT(found(), ElementsAre("/my data/terrace/terrace.block"));
}

TEST_F(Places, AFolderThatIsNamed) {
  const auto place = place_at(root_.path() + "/");
  ASSERT_TRUE(place) << place.error().message;
  EXPECT_EQ(place->path, root_.path() + "/terrace.block");
  EXPECT_GT(place->room_bytes, 0u);
  const auto missing = place_at(root_.path() + "/no");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace terrace::proposal
