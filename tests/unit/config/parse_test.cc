// SPDX-License-Identifier: Apache-2.0
// Shows that a configuration is read as it is meant, and that each kind of nonsense is named with file, line, key, what
// is wrong and what would be right: all of it at once.

#include "config/parse.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "base/bytes.h"

namespace terrace::config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

constexpr char kRuntime[] = "/run/terrace";

Result<Config> parse_here(std::string_view text) { return parse(text, "t.toml", kRuntime); }

std::string error_of(std::string_view text) {
  const Result<Config> config = parse_here(text);
  EXPECT_FALSE(config) << "this was taken for right:\n" << text;
  if (config) return "";
  EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
  return config.error().message;
}

std::string block_tier(std::string_view more) {
  return "[[tier]]\nkind = \"block\"\ncapacity = \"2TiB\"\n" + std::string(more);
}
std::string memory_tier_with(std::string_view more) {
  return "[[tier]]\nkind = \"memory\"\ncapacity = \"64GiB\"\n" + std::string(more);
}

TEST(Parse, NothingMeansDefaults) {
  const Result<Config> config = parse_here("");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->sockets.data, "/run/terrace/data.sock");
  EXPECT_EQ(config->sockets.grpc, "/run/terrace/terraced.sock");
  EXPECT_EQ(config->sockets.admin, "/run/terrace/admin.sock");
  EXPECT_EQ(config->metrics_address, "127.0.0.1:9464");
  EXPECT_THAT(config->tiers, SizeIs(0));
  ASSERT_THAT(config->tenants, SizeIs(1));
  EXPECT_EQ(config->tenants[0].name, "default");
  EXPECT_EQ(config->tenants[0].data_socket, config->sockets.data);
  EXPECT_EQ(config->tenants[0].grpc_socket, config->sockets.grpc);
  EXPECT_EQ(config->limits.tensors_per_session_max, 65536u);
  EXPECT_FALSE(config->strict);
  EXPECT_EQ(config->log_level, LogLevel::kInfo);
  EXPECT_EQ(config->policy, Policy::kNextUse);
}

TEST(Parse, EveryKeyIsRead) {
  const Result<Config> config = parse_here(R"(
strict = true
log_level = "debug"
policy = "s3-fifo"
metrics_address = ""
[sockets]
data = "/a/data"
grpc = "/a/grpc"
admin = "/a/admin"
[limits]
sessions_max = 1
tensors_per_session_max = 2
connections_max = 3
requests_queued_max = 4
request_timeout_ms = 5
session_idle_timeout_ms = 6
stop_timeout_ms = 7
[[tier]]
kind = "device"
device = "cuda:3"
capacity = "80%"
high_mark = 0.5
write_back = "late"
take_back = "give_up"
[[tier]]
kind = "memory"
capacity = "64GiB"
numa_node = 1
huge_pages = "2MiB"
[[tier]]
kind = "block"
capacity = 8388608
paths = ["/x/a", "/y/b"]
write_budget = "7.68TB/day"
[[tenant]]
name = "team-a"
uids = [1000, 1001]
quota = "1TiB"
weight = 3
[[tenant]]
name = "team-b"
data_socket = "/b/data"
grpc_socket = "/b/grpc"
uids = "any"
)");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_TRUE(config->strict);
  EXPECT_EQ(config->log_level, LogLevel::kDebug);
  EXPECT_EQ(config->policy, Policy::kS3Fifo);
  EXPECT_EQ(config->metrics_address, "");
  EXPECT_EQ(config->sockets.admin, "/a/admin");
  const Limits& limits = config->limits;
  EXPECT_THAT((std::array{limits.sessions_max, limits.tensors_per_session_max, limits.connections_max,
                          limits.requests_queued_max, limits.request_timeout_ms, limits.session_idle_timeout_ms,
                          limits.stop_timeout_ms}),
              ElementsAre(1, 2, 3, 4, 5, 6, 7));
  ASSERT_THAT(config->tiers, SizeIs(3));
  EXPECT_EQ(config->tiers[0].kind, TierKind::kDevice);
  EXPECT_EQ(config->tiers[0].device, "cuda:3");
  EXPECT_EQ(config->tiers[0].capacity, (Capacity{0, 80.0}));
  EXPECT_EQ(config->tiers[0].high_mark, 0.5);
  EXPECT_EQ(config->tiers[0].write_back, WriteBack::kLate);
  EXPECT_EQ(config->tiers[0].take_back, TakeBack::kGiveUp);
  EXPECT_EQ(config->tiers[1].capacity, (Capacity{64 * kGiB, std::nullopt}));
  EXPECT_EQ(config->tiers[1].numa_node, 1u);
  EXPECT_EQ(config->tiers[1].huge_pages, HugePages::k2MiB);
  EXPECT_EQ(config->tiers[2].capacity.bytes, 8 * kMiB);
  EXPECT_THAT(config->tiers[2].paths, ElementsAre("/x/a", "/y/b"));
  EXPECT_EQ(config->tiers[2].write_budget_bytes_per_day, 7'680'000'000'000u);
  EXPECT_EQ(config->tiers[2].origin.line, 30u);
  ASSERT_THAT(config->tenants, SizeIs(2));
  EXPECT_EQ(config->tenants[0].data_socket, "/a/data");
  EXPECT_THAT(config->tenants[0].uids, ElementsAre(1000, 1001));
  EXPECT_EQ(config->tenants[0].quota_bytes, 1024 * kGiB);
  EXPECT_EQ(config->tenants[0].weight, 3u);
  EXPECT_EQ(config->tenants[1].weight, 1u);
  EXPECT_EQ(config->tenants[1].data_socket, "/b/data");
  EXPECT_TRUE(config->tenants[1].any_uid);
}

TEST(Parse, LinksAreSpeedsAndLatencies) {
  const Result<Config> config = parse_here(R"([links]
host_to_device = "55GB/s"
device_to_host = "15.5 GiB/s"
device_both = "60GB/s"
device_within = "900GB/s"
memory_within = "40GB/s"
device_latency_us = 30
block_read = "6500MB/s"
block_write = "3.5GB/s"
block_both = "7GB/s"
block_latency_us = 20
block_read_drain_us = 1200
request_latency_us = 40
)");
  ASSERT_TRUE(config) << config.error().message;
  const Links& links = config->links;
  EXPECT_EQ(links.host_to_device_bytes_per_s, 55'000'000'000u);
  EXPECT_EQ(links.device_to_host_bytes_per_s, 15 * kGiB + 512 * kMiB);
  EXPECT_EQ(links.device_latency_us, 30u);
  EXPECT_EQ(links.block_read_bytes_per_s, 6'500'000'000u);
  EXPECT_EQ(links.block_write_bytes_per_s, 3'500'000'000u);
  EXPECT_EQ(links.block_latency_us, 20u);
  EXPECT_EQ(links.block_read_drain_us, 1200u);
  EXPECT_EQ(links.device_both_bytes_per_s, 60'000'000'000u);
  EXPECT_EQ(links.block_both_bytes_per_s, 7'000'000'000u);
  EXPECT_EQ(links.device_within_bytes_per_s, 900'000'000'000u);
  EXPECT_EQ(links.memory_within_bytes_per_s, 40'000'000'000u);
  EXPECT_EQ(links.request_latency_us, 40u);
  for (const char* wrong : {"\"55GB\"", "\"fast\"", "\"0B/s\"", "\"/s\"", "\"-1GB/s\"", "55"}) {
    EXPECT_THAT(error_of(std::string("[links]\nblock_read = ") + wrong), StartsWith("t.toml:2: links.block_read: is "));
  }
  EXPECT_THAT(error_of("[links]\ndevice_latency_us = -1"), HasSubstr("from 0 to"));
  EXPECT_THAT(error_of("[links]\nread = \"1GB/s\""), HasSubstr("no such key"));
}

TEST(Parse, AllProblemsAreNamedInTheOrderOfTheirLines) {
  const std::string message = error_of(R"(strict = "yes"
log_level = "loud"
[limits]
sessions_max = 0
[[tier]]
kind = "memory"
capacity = "much"
colour = "blue"
)");
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < message.size();) {
    const std::size_t end = std::min(message.find('\n', begin), message.size());
    lines.push_back(message.substr(begin, end - begin));
    begin = end + 1;
  }
  EXPECT_THAT(lines,
              ElementsAre(AllOf(StartsWith("t.toml:1: strict: "), HasSubstr("true or false")),
                          AllOf(StartsWith("t.toml:2: log_level: "), HasSubstr("\"loud\""), HasSubstr("\"info\"")),
                          AllOf(StartsWith("t.toml:4: limits.sessions_max: "), HasSubstr("from 1 to")),
                          AllOf(StartsWith("t.toml:7: tier[0].capacity: "), HasSubstr("\"64GiB\"")),
                          StartsWith("t.toml:8: tier[0].colour: there is no such key")));
}

TEST(Parse, AnUnknownKeyGetsTheNearestOne) {
  EXPECT_THAT(error_of(memory_tier_with("huge_page = \"auto\"")),
              AllOf(StartsWith("t.toml:4: tier[0].huge_page: "), HasSubstr("\"huge_pages\"")));
  EXPECT_THAT(error_of("metric_adress = \"\""), HasSubstr("\"metrics_address\""));
  EXPECT_THAT(error_of("[socket]\ndata = \"/x\""), AllOf(StartsWith("t.toml:1: socket: "), HasSubstr("\"sockets\"")));
  EXPECT_THAT(error_of("[limits]\nsession_max = 1"), HasSubstr("\"sessions_max\""));
  EXPECT_THAT(error_of("[[tenant]]\nname = \"a\"\nquotas = 1"), HasSubstr("\"quota\""));
  EXPECT_THAT(error_of("wholly_different_from_any = 1"), HasSubstr("known here are"));
}

TEST(Parse, WhatIsNotTomlIsNamedWithItsLine) {
  EXPECT_THAT(error_of("strict = true\n[[tier\n"), AllOf(StartsWith("t.toml:2: "), HasSubstr("not TOML")));
  EXPECT_THAT(error_of("strict = true\nstrict = true\n"), StartsWith("t.toml:2: "));
  EXPECT_THAT(error_of(std::string("\0\xff\xfe", 3)), HasSubstr("not text"));
  EXPECT_THAT(error_of("strict = true\n# \x1B[2J"), AllOf(StartsWith("t.toml:2: "), HasSubstr("not text")));
  for (const char* torn :
       {"[", "[\n", "[[", "[[tier\xE3\x81\x82]]", "\xEF\xBB\xBD", "\xE3\x81\x82 = 1", "a = \xC3\xA4"})
    EXPECT_THAT(error_of(torn), HasSubstr("not TOML")) << torn;
  EXPECT_TRUE(parse_here("log_level = \"info\" # \xE3\x81\x82")) << "in comments and strings all is well";
}

TEST(Parse, ATierNeedsAKindAndACapacity) {
  EXPECT_THAT(error_of("[[tier]]\ncapacity = \"1GiB\""), HasSubstr("t.toml:1: tier[0].kind: is missing"));
  EXPECT_THAT(error_of("[[tier]]\nkind = \"memory\""), HasSubstr("t.toml:1: tier[0].capacity: is missing"));
  EXPECT_THAT(error_of("[[tier]]\nkind = \"disk\"\ncapacity = \"1GiB\""),
              AllOf(HasSubstr("t.toml:2: tier[0].kind"), HasSubstr("\"block\"")));
  EXPECT_THAT(error_of("[tier]\nkind = \"memory\""), HasSubstr("[[tier]]"));
}

TEST(Parse, CapacitiesThatAreNone) {
  for (const char* capacity :
       {"\"0%\"", "\"101%\"", "\"-5%\"", "\"%\"", "\"1e999%\"", "\"nan%\"", "\"64\u00a0GiB\"", "\"-1GiB\"", "\"GiB\"",
        "\"99999999TiB\"", "0", "-1", "1.5", "true", "\"4095\"", "\"\"", "\"1MiB\""}) {
    const std::string text = std::string("[[tier]]\nkind = \"memory\"\ncapacity = ") + capacity;
    EXPECT_THAT(error_of(text), StartsWith("t.toml:3: tier[0].capacity: ")) << capacity;
  }
}

TEST(Parse, ValuesOutOfRange) {
  EXPECT_THAT(error_of(memory_tier_with("high_mark = 0")), HasSubstr("tier[0].high_mark: is 0"));
  EXPECT_THAT(error_of(memory_tier_with("high_mark = 1.1")), HasSubstr("at most 1"));
  EXPECT_THAT(error_of(memory_tier_with("high_mark = nan")), HasSubstr("at most 1"));
  EXPECT_THAT(error_of(memory_tier_with("high_mark = \"0.9\"")), HasSubstr("without quotes"));
  EXPECT_THAT(error_of(memory_tier_with("numa_node = -1")), HasSubstr("\"auto\""));
  EXPECT_THAT(error_of(memory_tier_with("numa_node = \"first\"")), HasSubstr("\"auto\""));
  EXPECT_THAT(error_of(memory_tier_with("huge_pages = \"1GiB\"")), HasSubstr("\"2MiB\""));
  EXPECT_THAT(error_of("[limits]\nrequest_timeout_ms = 99999999999"), HasSubstr("from 1 to 86400000"));
  EXPECT_THAT(error_of("[limits]\nconnections_max = \"many\""), HasSubstr("whole number"));
  for (const char* address : {"9464", ":9464", "localhost:", "localhost:http"}) {
    EXPECT_THAT(error_of(std::string("metrics_address = \"") + address + "\""), HasSubstr("HOST:PORT")) << address;
  }
  for (const char* address : {"::1:9464", "[127.0.0.1]:9464"})
    EXPECT_THAT(error_of(std::string("metrics_address = \"") + address + "\""), HasSubstr("\"[::1]:9464\"")) << address;
  for (const char* address : {"localhost:65536", "127.0.0.1:99999", "h:99999999999999999999"}) {
    EXPECT_THAT(error_of(std::string("metrics_address = \"") + address + "\""),
                AllOf(StartsWith("t.toml:1: metrics_address: "), HasSubstr("a port is at most 65535")));
  }
}

TEST(Parse, KeysOfAnotherKind) {
  EXPECT_THAT(error_of(memory_tier_with("paths = [\"/x\"]")), HasSubstr("tier[0].paths: is a key of block tiers"));
  EXPECT_THAT(error_of(memory_tier_with("write_budget = \"1TB/day\"")),
              HasSubstr("write_budget: is a key of block tiers"));
  EXPECT_THAT(error_of(memory_tier_with("device = \"emulated\"")), HasSubstr("is a key of device tiers"));
  EXPECT_THAT(error_of(memory_tier_with("write_back = \"early\"")), HasSubstr("write_back: is a key of device tiers"));
  EXPECT_THAT(error_of(memory_tier_with("take_back = \"wait\"")), HasSubstr("take_back: is a key of device tiers"));
  EXPECT_THAT(error_of(block_tier("paths = [\"/x\"]\nnuma_node = 0")), HasSubstr("device and memory tiers"));
}

TEST(Parse, ABlockTierNeedsFiles) {
  EXPECT_THAT(error_of(block_tier("")), HasSubstr("tier[0].paths: is missing"));
  EXPECT_THAT(error_of(block_tier("paths = []")), HasSubstr("a list of files"));
  EXPECT_THAT(error_of(block_tier("paths = \"/x\"")), HasSubstr("a list of files"));
  EXPECT_THAT(error_of(block_tier("paths = [\"x\"]")), HasSubstr("absolute path"));
  EXPECT_THAT(error_of(block_tier("paths = [\"/x/\"]")), HasSubstr("absolute path of a file"));
  EXPECT_THAT(error_of(block_tier("paths = [\"/x\", \"/y\", \"/x\"]")), HasSubstr("\"/x\" twice"));
}

TEST(Parse, AWriteBudgetIsBytesADay) {
  for (const char* budget : {"1TB", "0/day", "1TB/s", "/day", "-1GB/day"}) {
    EXPECT_THAT(error_of(block_tier(std::string("paths = [\"/x\"]\nwrite_budget = \"") + budget + "\"")),
                HasSubstr("it must be bytes a day above 0, such as \"7.68TB/day\""))
        << budget;
  }
}

TEST(Parse, AGpuIsWrittenBackEarly) {
  const auto device = [](const std::string& keys) {
    return "[[tier]]\nkind = \"device\"\ncapacity = \"2MiB\"\n" + keys;
  };
  const auto is_early = [&](const std::string& keys) {
    return parse_here(device(keys) + memory_tier_with("")).value().tiers[0].writes_back_early();
  };
  EXPECT_TRUE(is_early("device = \"cuda:0\"\n"));
  EXPECT_FALSE(is_early("device = \"emulated\"\n")) << "its memory outlives the daemon";
  EXPECT_TRUE(is_early("device = \"emulated\"\nwrite_back = \"early\"\n"));
  EXPECT_FALSE(is_early("device = \"cuda:0\"\nwrite_back = \"late\"\n"));
  EXPECT_THAT(error_of(device("write_back = \"soon\"\n")), HasSubstr("\"early\""));
  EXPECT_THAT(error_of(device("write_back = \"early\"\n")),
              HasSubstr("t.toml:4: tier[0].write_back: is \"early\", and there is no tier beneath"));
  EXPECT_THAT(
      error_of(device("write_back = \"early\"\n") + block_tier("paths = [\"/x\"]")),
      HasSubstr("t.toml:4: tier[0].write_back: is \"early\", and drives are written early within a budget alone"));
  EXPECT_TRUE(
      parse_here(device("write_back = \"early\"\n") + block_tier("paths = [\"/x\"]\nwrite_budget = \"1TB/day\"")));
}

TEST(Parse, TiersStandFastestFirst) {
  EXPECT_THAT(error_of(block_tier("paths = [\"/x\"]\n") + memory_tier_with("")),
              AllOf(HasSubstr("t.toml:5: tier[1]"), HasSubstr("device, memory, block")));
  EXPECT_THAT(error_of(block_tier("paths = [\"/x\"]\n") + block_tier("paths = [\"/y\"]")), HasSubstr("stripe"));
  EXPECT_THAT(error_of(memory_tier_with("") + memory_tier_with("")),
              HasSubstr("t.toml:4: tier[1]: is a second memory tier"));
  const std::string gpu = "[[tier]]\nkind = \"device\"\ncapacity = \"80%\"\ndevice = \"cuda:0\"\n";
  EXPECT_THAT(error_of(gpu + gpu), HasSubstr("tier[1].device: is cuda:0 again"));
  for (const char* device : {"cuda", "cuda:", "cuda:x", "cuda:1x", "gpu0", ""}) {
    EXPECT_THAT(error_of("[[tier]]\nkind = \"device\"\ncapacity = \"2MiB\"\ndevice = \"" + std::string(device) + "\""),
                HasSubstr("\"cuda:N\""));
  }
  std::string many;
  for (std::size_t i = 0; i <= kTiersMax; ++i) many += memory_tier_with("");
  EXPECT_THAT(error_of(many), HasSubstr("at most 16"));
}

TEST(Parse, TenantsAreToldApart) {
  EXPECT_THAT(error_of("[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"\n"),
              AllOf(HasSubstr("t.toml:3: tenant[1].data_socket"), HasSubstr("tenant[0].data_socket already")));
  EXPECT_THAT(error_of("[sockets]\ndata = \"/d\"\n[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"b\"\n"),
              AllOf(HasSubstr("t.toml:5: tenant[1].data_socket: \"/d\" is sockets.data already")));
  EXPECT_THAT(error_of("[sockets]\ndata = \"/d\"\n[[tenant]]\nname = \"a\"\ngrpc_socket = \"/d\"\n"),
              HasSubstr("t.toml:5: tenant[0].grpc_socket: \"/d\" is sockets.data already"));
  EXPECT_THAT(error_of("[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"a\"\n"), HasSubstr("t.toml:4: tenant[1].name"));
  EXPECT_THAT(error_of("[[tenant]]\n"), HasSubstr("tenant[0].name"));
  EXPECT_THAT(error_of("[[tenant]]\nname = \"a b\"\n"), HasSubstr("letters"));
  for (const char* uids : {"1000", "[\"root\"]", "[-1]", "[4294967295]", "\"all\""}) {
    EXPECT_THAT(error_of(std::string("[[tenant]]\nname = \"a\"\nuids = ") + uids),
                HasSubstr("tenant[0].uids: must be"));
  }
}

TEST(Parse, SocketPathsThatCannotBe) {
  const std::string longest = "/" + std::string(kSocketPathBytesMax - 1, 'x');
  EXPECT_TRUE(parse_here("[sockets]\ndata = \"" + longest + "\""));
  EXPECT_THAT(error_of("[sockets]\ndata = \"" + longest + "x\""),
              AllOf(StartsWith("t.toml:2: sockets.data: is 108 bytes"), HasSubstr("at most 107")));
  EXPECT_THAT(error_of("[sockets]\ngrpc = \"run/x\""), HasSubstr("absolute path"));
  EXPECT_THAT(error_of("[sockets]\ngrpc = \"/run/\\u0000x\""), HasSubstr("absolute path"));
  EXPECT_THAT(error_of("[sockets]\ngrpc = \"/a\"\ndata = \"/a\""), HasSubstr("a path of its own"));
  EXPECT_THAT(error_of("[sockets]\ndata = \"/a\"\ngrpc = \"/a\"\nadmin = \"/a\"\n"),
              AllOf(StartsWith("t.toml:3: sockets.grpc: \"/a\" is sockets.data already"),
                    HasSubstr("\nt.toml:4: sockets.admin: \"/a\" is sockets.data already")));
  EXPECT_THAT(error_of("[sockets]\ndata = \"/run/terrace/admin.sock\"\n"),
              StartsWith("t.toml:2: sockets.data: \"/run/terrace/admin.sock\" is sockets.admin already"));
  EXPECT_THAT(error_of("[sockets]\nadmin = \"/run/terrace/data.sock\""), HasSubstr("a path of its own"));
  const Result<Config> too_long = parse("", "t.toml", longest);
  ASSERT_FALSE(too_long);
  EXPECT_THAT(too_long.error().message, AllOf(HasSubstr("at most 107"), HasSubstr("[sockets]")));
}

TEST(Parse, WithoutARuntimeFolderSocketsMustBeNamed) {
  const Result<Config> none = parse("", "t.toml", "");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, AllOf(HasSubstr("XDG_RUNTIME_DIR"), HasSubstr("[sockets]")));
  EXPECT_TRUE(parse("[sockets]\ndata = \"/d\"\ngrpc = \"/g\"\nadmin = \"/a\"", "t.toml", ""));
}

TEST(Parse, WhoMayConnect) {
  TenantConfig tenant;
  EXPECT_TRUE(tenant.admits(1000, 1000));
  EXPECT_FALSE(tenant.admits(1001, 1000));
  EXPECT_TRUE(tenant.admits(0, 1000)) << "root always";
  tenant.uids = {1001};
  EXPECT_TRUE(tenant.admits(1001, 1000));
  EXPECT_FALSE(tenant.admits(1000, 1000));
  tenant.any_uid = true;
  EXPECT_TRUE(tenant.admits(77, 1000));
}

TEST(Load, ReadsTheExampleThatIsShipped) {
  const Result<Draft> draft = load(TERRACE_EXAMPLE_CONFIG, kRuntime);
  ASSERT_TRUE(draft) << draft.error().message;
  EXPECT_TRUE(draft->problems.none()) << draft->problems.error().message;
  EXPECT_THAT(draft->config.tiers, SizeIs(3));
}

TEST(Load, NamesAFileThatCannotBeRead) {
  const std::string folder = std::filesystem::temp_directory_path();
  const Result<Draft> missing = load(folder + "/terrace-no-such-file.toml", kRuntime);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr("terrace-no-such-file.toml"));
  const Result<Draft> a_folder = load(folder, kRuntime);
  ASSERT_FALSE(a_folder);
  EXPECT_EQ(a_folder.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace::config
