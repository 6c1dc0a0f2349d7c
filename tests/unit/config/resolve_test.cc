// SPDX-License-Identifier: Apache-2.0
// Shows that parts become bytes of what may really be used, in whole segments; that what could not be had at a start is
// refused with the line and key that ask for it, and both numbers; that a home tier smaller than its caches is warned
// of; and what is taken without a configuration.

#include "config/resolve.h"

#include <gmock/gmock.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/bytes.h"
#include "unit/config/written.h"

namespace terrace::config {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

Config resolved(const std::string& text) {
  Result<Config> config = resolve(config_of(text), limited_machine());
  EXPECT_TRUE(config) << config.error().message;
  return config.value_or(Config());
}

std::string error_of(const std::string& text) {
  const Result<Config> config = resolve(config_of(text), limited_machine());
  EXPECT_FALSE(config) << "this was taken for right:\n" << text;
  if (config) return "";
  EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
  return config.error().message;
}

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "terrace-block-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string block_tier(const std::string& capacity, int files = 1) const {
    std::string paths;
    for (int i = 0; i < files; ++i) paths += (i == 0 ? "\"" : ", \"") + path_ + "/" + std::to_string(i) + "\"";
    return "[[tier]]\nkind = \"block\"\ncapacity = \"" + capacity + "\"\npaths = [" + paths + "]\n";
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Resolve, APartIsOfWhatTheCgroupAllows) {
  const Config config = resolved(memory_tier("80%"));
  EXPECT_EQ(config.tiers[0].capacity.bytes, 80 * kGiB);
}

TEST(Resolve, APartOfANodeIsOfThatNode) {
  topology::Machine machine = limited_machine();
  machine.memory_bytes = machine.memory_total_bytes;
  const Result<Config> config = resolve(config_of(memory_tier("50%", "numa_node = 1")), machine);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->tiers[0].capacity.bytes, 64 * kGiB);
}

TEST(Resolve, PartsAreWholeSegments) {
  const Config config = resolved(memory_tier("33.3%"));
  EXPECT_EQ(config.tiers[0].capacity.bytes % (256 * kMiB), 0u);
  EXPECT_NEAR(static_cast<double>(config.tiers[0].capacity.bytes), 33.3 * kGiB, 256.0 * kMiB);
  EXPECT_THAT(error_of(memory_tier("0.0001%")), HasSubstr("less than 2 MiB"));
}

TEST(Resolve, MoreThanTheCgroupAllowsIsRefusedWithBothNumbers) {
  EXPECT_THAT(error_of(memory_tier("101GiB")),
              AllOf(HasSubstr("t.toml:3: tier[0].capacity: "), HasSubstr("101 GiB"), HasSubstr("100 GiB"),
                    HasSubstr("/sys/fs/cgroup/jobs/memory.max")));
  EXPECT_THAT(resolved(memory_tier("100GiB")).warnings, IsEmpty());
}

TEST(Resolve, EmulatedDevicesAreMemoryToo) {
  const std::string device = "[[tier]]\nkind = \"device\"\ncapacity = \"60GiB\"\n";
  EXPECT_THAT(error_of(device + memory_tier("60GiB")),
              AllOf(HasSubstr("t.toml:6: tier[1].capacity: "), HasSubstr("120 GiB"), HasSubstr("100 GiB")));
  EXPECT_THAT(error_of(device + memory_tier("60%")), HasSubstr("120 GiB"));
}

TEST(Resolve, SizesThatWrapAreNoWayAround) {
  EXPECT_THAT(
      error_of(device_tier("emulated", "8388607TiB") + device_tier("emulated", "8388607TiB") + memory_tier("4TiB")),
      HasSubstr("100 GiB"));
}

TEST(Resolve, ANodeMustBeThereAndHaveRoom) {
  EXPECT_THAT(error_of(memory_tier("1GiB", "numa_node = 7")),
              AllOf(HasSubstr("t.toml:4: tier[0].numa_node: is 7"), HasSubstr("0, 1")));
  topology::Machine machine = limited_machine();
  machine.memory_bytes = machine.memory_total_bytes;
  const std::string two = device_tier("emulated", "100GiB", "numa_node = 1") + memory_tier("100GiB", "numa_node = 1");
  const Result<Config> config = resolve(config_of(two), machine);
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().message,
              AllOf(HasSubstr("tier[1].capacity"), HasSubstr("node 1"), HasSubstr("200 GiB"), HasSubstr("128 GiB")));
}

TEST(Resolve, ConnectionsAreAsManyAsThereAreDescriptorsFor) {
  topology::Machine machine = limited_machine();
  const auto connections = [&](std::uint64_t open_files, const std::string& limits) {
    machine.open_files_max = open_files;
    const Result<Config> config = resolve(config_of(memory_tier("32MiB") + "[limits]\n" + limits), machine);
    EXPECT_TRUE(config) << config.error().message;
    return std::pair(config->limits.connections_max, config->warnings.size());
  };
  // 64 of its own, 16 segments; each connection takes three, and a session two more.
  EXPECT_EQ(connections(topology::kUnlimited, ""), std::pair(512u, std::size_t{0}));
  EXPECT_EQ(connections(80 + 3 * 512 + 2 * 256, ""), std::pair(512u, std::size_t{0}));
  EXPECT_EQ(connections(80 + 3 * 512 + 2 * 256 - 1, ""), std::pair(511u, std::size_t{1}));
  EXPECT_EQ(connections(80 + 5 * 256, ""), std::pair(256u, std::size_t{1}));
  EXPECT_EQ(connections(85, "sessions_max = 64"), std::pair(1u, std::size_t{1}));
  machine.open_files_max = 84;
  const Result<Config> none = resolve(config_of(memory_tier("32MiB")), machine);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, AllOf(HasSubstr("limits"), HasSubstr("84 descriptors"), HasSubstr("LimitNOFILE")));
}

TEST(Resolve, HugePagesThatMustBeAreReserved) {
  EXPECT_EQ(resolved(memory_tier("40MiB", "huge_pages = \"2MiB\"\nnuma_node = 1")).tiers[0].capacity.bytes, 40 * kMiB);
  EXPECT_THAT(error_of(memory_tier("40MiB", "huge_pages = \"2MiB\"\nnuma_node = 0")),
              AllOf(HasSubstr("t.toml:4: tier[0].huge_pages"), HasSubstr("takes 20 huge pages"),
                    HasSubstr("10 are reserved on node 0")));
  EXPECT_THAT(error_of(memory_tier("62MiB", "huge_pages = \"2MiB\"")), HasSubstr("31 huge pages, and 30 are reserved"));
}

TEST(Resolve, HugePagesInUseAreWarnedOfSinceAFormerDaemonsAreKept) {
  topology::Machine machine = limited_machine();
  machine.numa_nodes[1].huge_pages_free = 0;
  const Result<Config> config =
      resolve(config_of(memory_tier("40MiB", "huge_pages = \"2MiB\"\nnuma_node = 1")), machine);
  ASSERT_TRUE(config) << config.error().message;
  ASSERT_THAT(config->warnings, SizeIs(1));
  EXPECT_THAT(config->warnings[0], HasSubstr("t.toml:4: tier[0].huge_pages: takes 20 of 20 huge pages reserved on node "
                                             "1, and 0 are free"));
}

TEST(Resolve, ABlockTierNeedsRoom) {
  const Folder folder;
  const std::string memory = memory_tier("32MiB");
  const Config small = resolved(memory + folder.block_tier("8MiB", 2));
  EXPECT_EQ(small.tiers[1].capacity.bytes, 8 * kMiB);
  EXPECT_THAT(error_of(memory + folder.block_tier("8000000TiB")),
              AllOf(HasSubstr("t.toml:7: tier[1].capacity"), HasSubstr("have room for")));
  const Config part = resolved(memory + folder.block_tier("50%", 2));
  const std::uint64_t room = topology::block_room(folder.path() + "/0")->free_bytes;
  EXPECT_GT(part.tiers[1].capacity.bytes, 0u);
  EXPECT_LT(part.tiers[1].capacity.bytes, room) << "two files of one file system share its room";
  EXPECT_THAT(error_of(memory + folder.block_tier("1MiB", 2)),
              AllOf(HasSubstr("tier[1].capacity"), HasSubstr("1 MiB")));
}

TEST(Resolve, ABlockTierNeedsAFolder) {
  const Folder folder;
  EXPECT_THAT(error_of(memory_tier("1GiB") + "[[tier]]\nkind = \"block\"\ncapacity = \"1GiB\"\npaths = [\"" +
                       folder.path() + "/no/x\"]\n"),
              AllOf(HasSubstr("t.toml:8: tier[1].paths"), HasSubstr(folder.path() + "/no")));
}

TEST(Resolve, SomebodysFileIsNoBlockFile) {
  const Folder folder;
  std::ofstream(folder.path() + "/0") << "a thesis";
  EXPECT_THAT(error_of(memory_tier("32MiB") + folder.block_tier("8MiB")),
              AllOf(HasSubstr("t.toml:8: tier[1].paths"), HasSubstr(folder.path() + "/0"), HasSubstr("8 bytes")));
}

TEST(Resolve, AFileIsOneStripeByWhateverName) {
  const Folder folder;
  const std::string tiers = memory_tier("32MiB") + "[[tier]]\nkind = \"block\"\ncapacity = \"8MiB\"\npaths = [\"" +
                            folder.path() + "/b\", \"" + folder.path() + "/../" +
                            std::filesystem::path(folder.path()).filename().string() + "/b\"]\n";
  EXPECT_THAT(error_of(tiers), AllOf(HasSubstr("t.toml:8: tier[1].paths"), HasSubstr("same file")));
  std::ofstream(folder.path() + "/b").flush();
  EXPECT_THAT(error_of(tiers), HasSubstr("same file")) << "when it is there, too";
}

// /proc has files and no direct I/O, on every machine.
TEST(Resolve, AFileSystemWithoutDirectIoIsNamedBeforeItsRoom) {
  const std::string error =
      error_of(memory_tier("32MiB") +
               "[[tier]]\nkind = \"block\"\ncapacity = \"1GiB\"\npaths = [\"/proc/self/coredump_filter\"]\n");
  EXPECT_THAT(error, AllOf(HasSubstr("t.toml:8: tier[1].paths"), HasSubstr("proc")));
  EXPECT_THAT(error, testing::Not(HasSubstr("room")));
}

TEST(Resolve, CapacityIsWholeSegmentsAndStripes) {
  const Folder folder;
  const Config config = resolved(memory_tier("100MiB") + folder.block_tier("201MiB", 2));
  EXPECT_EQ(config.tiers[0].capacity.bytes, 96 * kMiB);
  EXPECT_EQ(config.tiers[1].capacity.bytes, 200 * kMiB);
  ASSERT_THAT(config.warnings, SizeIs(2));
  EXPECT_THAT(config.warnings[0], AllOf(HasSubstr("t.toml:3: tier[0].capacity: "), HasSubstr("100 MiB"),
                                        HasSubstr("96 MiB"), HasSubstr("segments, here of 6 MiB")));
  EXPECT_THAT(config.warnings[1], AllOf(HasSubstr("t.toml:7: tier[1].capacity: "), HasSubstr("201 MiB"),
                                        HasSubstr("200 MiB"), HasSubstr("stripes of 1 MiB")));
  EXPECT_THAT(resolved(memory_tier("33.3%")).warnings, IsEmpty()) << "a part is no promise of a size";
}

TEST(Resolve, WhatNoTrainerCouldMapIsRefused) {
  const Folder folder;
  EXPECT_THAT(error_of(folder.block_tier("8MiB")), HasSubstr("t.toml:1: tier[0]: is a block tier alone"));
  EXPECT_THAT(error_of(device_tier("emulated", "8MiB") + device_tier("emulated", "8MiB")),
              HasSubstr("t.toml:6: tier[1]: is the last of 2 device tiers with nothing beneath"));
}

TEST(Resolve, WhatTheFileHasWrongHidesNothing) {
  Result<Draft> draft = read(memory_tier("1GiB", "high_mark = 1.7\nnuma_node = 7") +
                                 "[[tier]]\nkind = \"device\"\ncapacity = \"much\"\nnuma_node = 8\n",
                             "t.toml", runtime());
  ASSERT_TRUE(draft);
  const Result<Config> config = resolve(std::move(*draft), limited_machine());
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().message,
              AllOf(HasSubstr("t.toml:4: tier[0].high_mark: is 1.7"), HasSubstr("t.toml:5: tier[0].numa_node: is 7"),
                    HasSubstr("t.toml:8: tier[1].capacity: \"much\""), HasSubstr("t.toml:9: tier[1].numa_node: is 8")));
  EXPECT_THAT(config.error().message, testing::Not(HasSubstr("less than 2 MiB"))) << "that follows from \"much\"";
}

TEST(Resolve, AMetricsAddressIsOfThisMachine) {
  const std::string tier = memory_tier("1GiB");
  EXPECT_THAT(error_of("metrics_address = \"nohost.invalid:9464\"\n" + tier),
              AllOf(HasSubstr("t.toml:1: metrics_address: "), HasSubstr("nohost.invalid")));
  EXPECT_THAT(error_of("metrics_address = \"192.0.2.1:9464\"\n" + tier),  // RFC 5737: nobody's
              AllOf(HasSubstr("t.toml:1: metrics_address: "), HasSubstr("192.0.2.1")));
  EXPECT_EQ(resolved("metrics_address = \"127.0.0.1:0\"\n" + tier).metrics_address, "127.0.0.1:0");
}

TEST(Resolve, ASocketsFolderMustBeOne) {
  const Folder folder;
  std::ofstream(folder.path() + "/file") << "somebody's";
  EXPECT_THAT(error_of(memory_tier("1GiB") + "[sockets]\ndata = \"" + folder.path() + "/file/x.sock\"\n"),
              AllOf(HasSubstr("t.toml:6: sockets.data: "), HasSubstr("is no folder")));
  if (::geteuid() == 0) GTEST_SKIP() << "root may write in every folder";
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_THAT(error_of(memory_tier("1GiB") + "[sockets]\ndata = \"" + folder.path() + "/x.sock\"\n"),
              AllOf(HasSubstr("t.toml:6: sockets.data: "), HasSubstr("Permission denied")));
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
}

TEST(Resolve, EverythingWrongIsNamedAtOnce) {
  const std::string message =
      error_of(device_tier("emulated", "200GiB", "numa_node = 7") + memory_tier("1GiB", "numa_node = 8"));
  EXPECT_THAT(message, AllOf(HasSubstr("tier[0].numa_node"), HasSubstr("tier[1].numa_node"), HasSubstr("201 GiB")));
}

TEST(Resolve, WarnsOfAHomeTierSmallerThanItsCaches) {
  const Folder folder;
  const Config config = resolved(device_tier("emulated", "40GiB") + memory_tier("20GiB") + folder.block_tier("8MiB"));
  ASSERT_THAT(config.warnings, SizeIs(1));
  EXPECT_THAT(config.warnings[0],
              AllOf(HasSubstr("60 GiB"), HasSubstr("8 MiB"), HasSubstr("block tier"), HasSubstr("capacity to 60 GiB")));
  EXPECT_THAT(resolved(memory_tier("8MiB") + folder.block_tier("8MiB")).warnings, IsEmpty());
  EXPECT_THAT(resolved(memory_tier("8GiB")).warnings, IsEmpty());
}

TEST(Defaults, TakeAQuarterOfWhatMayBeUsed) {
  const Result<Config> config = defaults(limited_machine(), runtime());
  ASSERT_TRUE(config) << config.error().message;
  ASSERT_THAT(config->tiers, SizeIs(1)) << "no block file unless told, no device that is not there";
  EXPECT_EQ(config->tiers[0].kind, TierKind::kMemory);
  EXPECT_EQ(config->tiers[0].capacity.bytes, 25 * kGiB);
  EXPECT_EQ(config->sockets.data, runtime() + "/data.sock");
  EXPECT_EQ(config->source, "");
  EXPECT_THAT(config->tenants, SizeIs(1));
}

TEST(Defaults, AConfigurationWithoutTiersTakesThemToo) {
  EXPECT_EQ(resolved("strict = true").tiers[0].capacity.bytes, 25 * kGiB);
}

TEST(Resolve, AFileAtASocketsPathIsNamed) {
  const Folder folder;
  const std::string path = folder.path() + "/file";
  std::ofstream(path) << "somebody's";
  const std::string error = error_of(memory_tier("1GiB") + "[sockets]\nadmin = \"" + path + "\"\n");
  EXPECT_THAT(error, AllOf(HasSubstr("t.toml:6: sockets.admin"), HasSubstr("no socket"), HasSubstr(path)));
}

TEST(Defaults, NeedAPlaceForSockets) {
  const Result<Config> config = defaults(limited_machine(), "");
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().message, HasSubstr("XDG_RUNTIME_DIR"));
}

TEST(Defaults, AMachineWithNoMemoryToSpareIsNamed) {
  topology::Machine machine = limited_machine();
  machine.memory_bytes = 4 * kMiB;
  EXPECT_FALSE(defaults(machine, runtime()));
}

TEST(Taken, SumsWhatTheReportNeeds) {
  const Folder folder;
  const Config config = resolved("[[tier]]\nkind = \"device\"\ncapacity = \"64MiB\"\nhuge_pages = \"never\"\n" +
                                 memory_tier("128MiB") + folder.block_tier("2GiB", 2));
  const Result<topology::Taken> sum = taken(config);
  ASSERT_TRUE(sum) << sum.error().message;
  EXPECT_EQ(sum->pinned_bytes, 192 * kMiB);
  EXPECT_EQ(sum->huge_page_bytes, 128 * kMiB);
  EXPECT_THAT(sum->block_paths, SizeIs(2));
  ASSERT_THAT(sum->tiers, SizeIs(3));
  EXPECT_THAT(sum->tiers[0], AllOf(HasSubstr("device (emulated)"), HasSubstr("64 MiB")));
  EXPECT_THAT(sum->tiers[2], AllOf(HasSubstr("block"), HasSubstr("2 GiB"), HasSubstr(folder.path())));
  const Result<topology::Taken> memory_only = taken(resolved(memory_tier("128MiB")));
  ASSERT_TRUE(memory_only);
  EXPECT_EQ(memory_only->pinned_bytes, 0u) << "nothing to register memory for";
}

}  // namespace
}  // namespace terrace::config
