// SPDX-License-Identifier: Apache-2.0
// Shows that the reference nodes are those of docs/reference/workloads.md, and that a node is read from the daemon's
// configuration.
#include "workload/node.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/bytes.h"
#include "workload/node_file.h"

namespace terrace::workload {
namespace {

using std::chrono::microseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kDevice[] = "[[tier]]\nkind = \"device\"\ncapacity = \"40GiB\"\n";
constexpr char kMemory[] = "[[tier]]\nkind = \"memory\"\ncapacity = \"128GiB\"\n";
constexpr char kBlock[] = "[[tier]]\nkind = \"block\"\ncapacity = \"2TB\"\npaths = [\"/scratch/terrace.block\"]\n";
constexpr char kLinks[] = R"([links]
host_to_device = "55.4GB/s"
device_to_host = "54.9GB/s"
device_latency_us = 30
block_read = "3.2GiB/s"
block_write = "2GB/s"
block_latency_us = 20
block_read_drain_us = 1200
)";
constexpr char kSlowerTogether[] =
    "device_both = \"60GB/s\"\nblock_both = \"3GB/s\"\ndevice_within = \"12GB/s\"\nrequest_latency_us = 25\n";

// load_node() of a file with this text.
Result<Node> load_text(const std::string& text) {
  const std::string path = testing::TempDir() + "node_test." + std::to_string(getpid()) + ".toml";
  std::ofstream(path) << text;
  Result<Node> node = load_node(path);
  std::filesystem::remove(path);
  return node;
}

std::string node_error_of(const std::string& text) {
  const Result<Node> node = load_text(text);
  EXPECT_FALSE(node) << text;
  if (node) return "";
  EXPECT_EQ(node.error().code, ErrorCode::kInvalidArgument);
  return node.error().message;
}

TEST(Node, ReferenceNodesAreKnownByName) {
  for (const std::string_view name : kReferenceNodes) {
    const Result<Node> node = load_node(std::string(name));
    ASSERT_TRUE(node) << name;
    EXPECT_EQ(node->name, name);
  }
  const Node g10 = *reference_node("g10");
  EXPECT_EQ(g10.hbm_bytes, 40 * kGiB);
  EXPECT_EQ(g10.host_bytes, 128 * kGiB);
  EXPECT_EQ(g10.block_bytes, kUnlimited);
  EXPECT_NEAR(static_cast<double>(g10.hbm.in_bytes_per_s), 15.754 * static_cast<double>(kGiB), 1);
  EXPECT_EQ(g10.block.latency, microseconds(20));
  EXPECT_EQ(reference_node("g10-2tier")->host_bytes, kUnlimited);
  EXPECT_EQ(reference_node("g10-2tier")->block_bytes, 0u);
  const Node dgx = *reference_node("dgx-h100");
  EXPECT_EQ(dgx.hbm_bytes, 80'000'000'000u);
  EXPECT_EQ(dgx.host_bytes, 250'000'000'000u);
  EXPECT_EQ(dgx.hbm.bytes_per_s(Direction::kIn), 55'000'000'000u);
  EXPECT_EQ(dgx.block.bytes_per_s(Direction::kIn), 6'000'000'000u);
  EXPECT_EQ(dgx.block.bytes_per_s(Direction::kOut), 3'250'000'000u);
  EXPECT_EQ(reference_node("h200-1gpu")->hbm.out_bytes_per_s, 54'900'000'000u);
}

TEST(Node, IsReadFromTheDaemonsConfiguration) {
  const Result<Node> node = load_text(std::string(kDevice) + kMemory + kBlock + kLinks);
  ASSERT_TRUE(node) << node.error().message;
  EXPECT_EQ(node->hbm_bytes, 40 * kGiB);
  EXPECT_EQ(node->capacity_bytes(Place::kHost), 128 * kGiB);
  EXPECT_EQ(node->block_bytes, 2'000'000'000'000u);
  EXPECT_EQ(node->hbm, (LinkSpeed{55'400'000'000, 54'900'000'000, microseconds(30)}));
  EXPECT_NEAR(static_cast<double>(node->block.in_bytes_per_s), 3.2 * static_cast<double>(kGiB), 1);
  EXPECT_EQ(node->block.out_bytes_per_s, 2'000'000'000u);
}

TEST(Node, SeveralGpusShareTheHostAndTheDrives) {
  const Result<Node> node = load_text(std::string(kDevice) + kDevice + kMemory + kBlock + kLinks);
  ASSERT_TRUE(node) << node.error().message;
  EXPECT_EQ(node->hbm_bytes, 40 * kGiB);
  EXPECT_EQ(node->host_bytes, 64 * kGiB);
  EXPECT_EQ(node->block_bytes, 1'000'000'000'000u);
  EXPECT_EQ(node->hbm.in_bytes_per_s, 55'400'000'000u) << "each GPU has a link of its own";
  EXPECT_EQ(node->block.out_bytes_per_s, 1'000'000'000u);
  EXPECT_EQ(node->gpus, 2u);
}

TEST(Node, DirectionsMaySlowEachOtherDown) {
  const Result<Node> node = load_text(std::string(kDevice) + kDevice + kMemory + kBlock + kLinks + kSlowerTogether);
  ASSERT_TRUE(node) << node.error().message;
  EXPECT_EQ(node->hbm.both_bytes_per_s, 60'000'000'000u);
  EXPECT_EQ(node->block.both_bytes_per_s, 1'500'000'000u) << "half of it";
  EXPECT_EQ(node->hbm_within_bytes_per_s, 12'000'000'000u);
  EXPECT_EQ(node->host_within_bytes_per_s, Node().host_within_bytes_per_s);
  EXPECT_EQ(node->request_latency, microseconds(25));
  EXPECT_EQ(whole(*node).block.both_bytes_per_s, 3'000'000'000u);
}

TEST(Node, IsReadAsItWasWritten) {
  for (const std::string& links : {std::string(kLinks), std::string(kLinks) + kSlowerTogether}) {
    const Result<Node> node = load_text(std::string(kDevice) + kMemory + kBlock + links);
    ASSERT_TRUE(node) << node.error().message;
    std::ostringstream text;
    write_node(*node, "/scratch/terrace.block", text);
    Result<Node> read = load_text(text.str());
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_NEAR(static_cast<double>(read->block.in_bytes_per_s), static_cast<double>(node->block.in_bytes_per_s), 1e3)
        << "3.2 GiB are no whole kilobytes";
    read->block.in_bytes_per_s = node->block.in_bytes_per_s;
    EXPECT_EQ(*read, *node);
  }
  const Result<Node> small = load_text(kDevice);
  ASSERT_TRUE(small);
  std::ostringstream text;
  write_node(*small, "", text);
  EXPECT_EQ(*load_text(text.str()), *small);
}

TEST(Node, WholeIsWhatIsShared) {
  const Node all = whole(*reference_node("dgx-h100"));
  EXPECT_EQ(all.host_bytes, 2'000'000'000'000u);
  EXPECT_EQ(all.block_bytes, 30'000'000'000'000u);
  EXPECT_EQ(all.block.out_bytes_per_s, 26'000'000'000u);
  EXPECT_EQ(all.hbm, reference_node("dgx-h100")->hbm);
  EXPECT_EQ(share(all, 8), *reference_node("dgx-h100"));
  EXPECT_EQ(whole(*reference_node("g10")).block_bytes, kUnlimited);
}

TEST(Node, NeedsOnlyTheLinksItHas) {
  EXPECT_TRUE(load_text(kDevice));
  EXPECT_TRUE(
      load_text(std::string(kDevice) + kMemory + "[links]\nhost_to_device = \"1GB/s\"\ndevice_to_host = \"1GB/s\"\n"));
}

TEST(Node, RefusesFilesThatDescribeNone) {
  EXPECT_THAT(node_error_of(std::string(kMemory) + kLinks), HasSubstr("no device tier"));
  EXPECT_THAT(node_error_of(std::string(kDevice) + kMemory),
              AllOf(HasSubstr("links.host_to_device: is missing"), HasSubstr("links.device_to_host: is missing")));
  EXPECT_THAT(
      node_error_of(std::string(kDevice) + kMemory + kBlock +
                    "[links]\nhost_to_device = \"1GB/s\"\ndevice_to_host = \"1GB/s\"\nblock_read = \"1GB/s\"\n"),
      HasSubstr("links.block_write: is missing"));
  EXPECT_THAT(node_error_of(std::string("[[tier]]\nkind = \"device\"\ncapacity = \"80%\"\n")),
              HasSubstr(":3: tier[0].capacity: is a part of a machine"));
  EXPECT_THAT(
      node_error_of(std::string(kDevice) + "[[tier]]\nkind = \"device\"\ncapacity = \"80GiB\"\n" + kMemory + kLinks),
      HasSubstr("tier[1].capacity: differs"));
  EXPECT_THAT(node_error_of("[[tier]]\nkind = \"device\"\n"), HasSubstr("tier[0].capacity: is missing"));
}

TEST(Node, NamesTheNodesItKnows) {
  const Result<Node> node = load_node("g10-3tier");
  ASSERT_FALSE(node);
  EXPECT_EQ(node.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(node.error().message, AllOf(HasSubstr("g10-3tier"), HasSubstr("dgx-h100")));
}

}  // namespace
}  // namespace terrace::workload
