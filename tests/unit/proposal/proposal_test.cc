// SPDX-License-Identifier: Apache-2.0
// Shows the sizes that are proposed for machines of several kinds, that the text is a configuration with those values,
// and how it is put into a file.
#include "proposal/proposal.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/bytes.h"
#include "config/capacity.h"
#include "config/parse.h"
#include "proposal/write.h"
#include "unit/topology/fake_root.h"

namespace terrace::proposal {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

topology::Machine machine(std::uint64_t bytes) {
  topology::Machine made;
  made.numa_nodes = {{.os_index = 0, .bytes = bytes, .cpus = {0, 1}}};
  made.memory_bytes = made.memory_total_bytes = bytes;
  made.memory_limit_source = "MemTotal";
  return made;
}

Place drive(const std::string& name, std::uint64_t room_bytes) {
  return {"/scratch/" + name + "/terrace.block",
          "/scratch/" + name,
          {name},
          room_bytes,
          static_cast<std::uint64_t>(name[0])};
}

Proposal proposed(const topology::Machine& of, const std::vector<Place>& places = {}, const Wishes& wishes = {},
                  bool has_driver = false) {
  auto made = propose(of, has_driver, places, wishes);
  EXPECT_TRUE(made) << made.error().message;
  return made.value_or(Proposal());
}

config::Config parsed(const Proposal& proposal) {
  const auto config = config::parse(to_toml(proposal), "proposal", "/run/terrace");
  EXPECT_TRUE(config) << config.error().message << to_toml(proposal);
  return config.value_or(config::Config());
}

TEST(Proposal, MemoryLeavesTheSystemRoom) {
  EXPECT_EQ(proposed(machine(1024 * kGiB)).memory.bytes, 512 * kGiB);
  EXPECT_EQ(proposed(machine(8 * kGiB)).memory.bytes, 2 * kGiB);
  topology::Machine limited = machine(64 * kGiB);
  limited.memory_limit_source = "cgroup /sys/fs/cgroup/memory.max";
  EXPECT_THAT(proposed(limited).memory.why, HasSubstr("cgroup /sys/fs/cgroup/memory.max"));
}

TEST(Proposal, ReservedHugePagesAreForNobodyElse) {
  topology::Machine reserved = machine(100 * kGiB);
  reserved.numa_nodes[0].huge_pages = 70 * 512;
  EXPECT_EQ(proposed(reserved).memory.bytes, config::whole_segments(70 * kGiB));
  reserved.numa_nodes[0].huge_pages = 512;
  EXPECT_EQ(proposed(reserved).memory.bytes, 50 * kGiB) << "a few are somebody else's";
}

TEST(Proposal, ABlockTierOverAllDrives) {
  const auto made = proposed(machine(100 * kGiB), {drive("a", 1000 * kGiB), drive("b", 900 * kGiB)});
  ASSERT_TRUE(made.block);
  const config::Config config = parsed(made);
  ASSERT_EQ(config.tiers.size(), 2u);
  EXPECT_THAT(config.tiers[1].paths, ElementsAre("/scratch/a/terrace.block", "/scratch/b/terrace.block"));
  EXPECT_NEAR(static_cast<double>(config.tiers[1].capacity.bytes), 0.8 * 1800 * kGiB, static_cast<double>(kGiB));
  EXPECT_THAT(to_toml(made), HasSubstr("install -d -o terrace -g terrace -m 0700 /scratch/a /scratch/b"));
}

TEST(Proposal, NoBlockTierThatIsSmallerThanWhatItIsBelow) {
  const auto made = proposed(machine(100 * kGiB), {drive("a", 40 * kGiB)});
  EXPECT_FALSE(made.block);
  EXPECT_THAT(to_toml(made), HasSubstr("# No block tier: 32 GiB would be left"));
  EXPECT_EQ(parsed(made).tiers.size(), 1u);
  EXPECT_THAT(to_toml(proposed(machine(100 * kGiB))), HasSubstr("# No block tier: no local drive"));
}

TEST(Proposal, ADeviceTierWhereThereAreGpusAndADriver) {
  topology::Machine with = machine(100 * kGiB);
  with.gpus = {{"0000:12:00.0", "H100", 0}};
  EXPECT_THAT(to_toml(proposed(with)), HasSubstr("their driver is not loaded"));
  const config::Config config = parsed(proposed(with, {}, {}, true));
  ASSERT_EQ(config.tiers.size(), 2u);
  EXPECT_EQ(config.tiers[0].device, "auto");
  EXPECT_EQ(config.tiers[0].capacity.percent, kDevicePercent);
}

TEST(Proposal, WishesAreHeard) {
  Wishes wishes;
  wishes.memory_bytes = 64 * kMiB;
  wishes.block_bytes = 96 * kMiB;
  wishes.places = {drive("mine\"s", kGiB)};
  wishes.sockets_folder = "/tmp/sockets";
  wishes.metrics_address = "";
  const config::Config config = parsed(proposed(machine(100 * kGiB), {drive("a", 1000 * kGiB)}, wishes));
  EXPECT_EQ(config.tiers[0].capacity.bytes, 64 * kMiB);
  EXPECT_EQ(config.tiers[1].capacity.bytes, 96 * kMiB);
  EXPECT_THAT(config.tiers[1].paths, ElementsAre("/scratch/mine\"s/terrace.block"));
  EXPECT_EQ(config.sockets.admin, "/tmp/sockets/admin.sock");
  EXPECT_EQ(config.metrics_address, "");
}

TEST(Proposal, WishesThatCannotBe) {
  const auto refusal = [](const Wishes& wishes, const std::vector<Place>& places) {
    const auto made = propose(machine(100 * kGiB), false, places, wishes);
    return made ? "" : made.error().message;
  };
  Wishes wishes;
  wishes.memory_bytes = 101 * kGiB;
  EXPECT_THAT(refusal(wishes, {}), HasSubstr("--memory: 101 GiB are more than the 100 GiB"));
  wishes.memory_bytes = kMiB;
  EXPECT_THAT(refusal(wishes, {}), HasSubstr("less than one segment"));
  wishes.memory_bytes.reset();
  wishes.block_bytes = kGiB;
  EXPECT_THAT(refusal(wishes, {}), HasSubstr("name a folder with --block"));
  EXPECT_THAT(refusal(wishes, {drive("a", kMiB)}), HasSubstr("--block-capacity: 1 GiB are more than the 1 MiB"));
  wishes.block_bytes = 1;
  EXPECT_THAT(refusal(wishes, {drive("a", kGiB)}), HasSubstr("takes 1 MiB at least"));
}

TEST(Proposal, AFileIsWrittenWholeAndNobodysIsReplacedUnasked) {
  topology::FakeRoot folder;
  const std::string path = folder.path() + "/terraced.toml";
  ASSERT_TRUE(write_file(path, "one", false));
  const auto again = write_file(path, "two", false);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(again.error().message, HasSubstr("--force"));
  const auto text = [&path] { return (std::stringstream() << std::ifstream(path).rdbuf()).str(); };
  EXPECT_EQ(text(), "one");
  ASSERT_TRUE(write_file(path, "two", true));
  EXPECT_EQ(text(), "two");
  EXPECT_FALSE(write_file(folder.path() + "/no/terraced.toml", "one", false));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1) << "and nothing is left";
}

TEST(Proposal, NothingButAFileIsReplaced) {
  topology::FakeRoot folder;
  const std::string path = folder.path() + "/terraced.toml";
  fs::create_symlink("elsewhere", path);
  const auto refused = write_file(path, "two", true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("is no regular file"));
  EXPECT_TRUE(fs::is_symlink(path)) << "it is as it was";
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(write_file(path, "two", true)) << "nor what is not a file, as a device";
  EXPECT_TRUE(fs::is_fifo(path));
  EXPECT_FALSE(write_file(folder.path(), "two", true));
}

}  // namespace
}  // namespace terrace::proposal
