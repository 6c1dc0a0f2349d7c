// SPDX-License-Identifier: Apache-2.0
// Shows how a transfer is cut into chunks, and which path its bytes take.
#include "mover/flow.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/bytes.h"

namespace terrace::mover {
namespace {

constexpr TierId kDevice{0};
constexpr TierId kMemory{1};
constexpr TierId kBlock{2};

Transfer between(TierId from, TierId to, std::uint64_t bytes = kMiB) {
  Transfer transfer{.tensor = 3, .version = 4, .bytes = bytes};
  transfer.from.tier = from;
  transfer.from.first_checksum = 100;
  transfer.to.tier = to;
  transfer.to.first_checksum = 200;
  return transfer;
}

TEST(RouteTest, FollowsTheTiers) {
  EXPECT_EQ(route(between(kDevice, kMemory), kBlock), Path::kCopy);
  EXPECT_EQ(route(between(kMemory, kMemory), kBlock), Path::kCopy);
  EXPECT_EQ(route(between(kMemory, kBlock), kBlock), Path::kToBlock);
  EXPECT_EQ(route(between(kBlock, kDevice), kBlock), Path::kFromBlock);
  Transfer zeros = between(kDevice, kMemory);
  zeros.zero_fill = true;
  EXPECT_EQ(route(zeros, kBlock), Path::kZero);
  zeros.to.tier = kBlock;
  EXPECT_EQ(route(zeros, kBlock), Path::kToBlock);
}

TEST(RouteDeathTest, NothingGoesFromBlockToBlock) {
  EXPECT_DEATH((void)route(between(kBlock, kBlock), kBlock), "check failed");
}

TEST(FlowTest, CutsIntoMebibytesAndPadsTheLastToAPage) {
  std::vector<std::byte> memory(3 * kMiB);
  Flow flow;
  flow.prepare(between(kMemory, kBlock, 2 * kMiB + 5000), Path::kToBlock, {}, memory.data(), nullptr);
  ASSERT_EQ(flow.chunks, 3U);
  for (std::uint64_t index = 0; index < 3; ++index) {
    EXPECT_FALSE(flow.is_begun());
    const ChunkWork work = flow.begin_chunk(nullptr);
    EXPECT_EQ(work.from, memory.data() + index * kMiB);
    EXPECT_EQ(work.bytes, index < 2 ? kMiB : 5000U);
    EXPECT_EQ(work.padded_bytes, index < 2 ? kMiB : 8192U);
    EXPECT_EQ(work.entry, 200 + index);
    EXPECT_EQ(work.name.chunk, index);
    EXPECT_EQ(work.name.tensor, 3U);
    EXPECT_EQ(work.name.version, 4U);
    EXPECT_EQ(work.pieces, &flow.transfer.to.pieces);
  }
  EXPECT_TRUE(flow.is_begun());
  EXPECT_EQ(flow.in_flight, 3U);
}

TEST(FlowTest, WhatIsOnlyCopiedGoesInLargerPiecesThatAreEnoughForAll) {
  const auto chunk_bytes = [](std::uint64_t bytes, unsigned copiers) {
    return Flow::chunk_bytes_of(bytes, Path::kCopy, {.copiers = copiers}, Class::kDemand);
  };
  EXPECT_EQ(chunk_bytes(64 * kMiB, 1), 4 * kMiB);
  EXPECT_EQ(chunk_bytes(64 * kMiB, 6), 2 * kMiB);
  EXPECT_EQ(chunk_bytes(64 * kMiB, 64), kMiB);
  EXPECT_EQ(chunk_bytes(4 * kMiB, 1), kMiB);
  EXPECT_EQ(chunk_bytes(100, 1), kMiB);
  EXPECT_EQ(Flow::chunk_bytes_of(64 * kMiB, Path::kToBlock, {}, Class::kDemand), kMiB);
  for (const Class awaited : {Class::kDemand, Class::kLatePrefetch, Class::kAwaitedWriteBack})
    EXPECT_EQ(Flow::chunk_bytes_of(kMiB, Path::kCopy, {.pinned = true}, awaited), 4 * kMiB);
  for (const Class unawaited : {Class::kPrefetch, Class::kCleaning})
    EXPECT_EQ(Flow::chunk_bytes_of(kMiB, Path::kCopy, {.pinned = true}, unawaited), 16 * kMiB);
}

TEST(FlowTest, OverlappingRangesGoOneByOneAwayFromWhereTheyMove) {
  std::vector<std::byte> memory(8 * kMiB);
  Flow flow;
  flow.prepare(between(kMemory, kMemory, 3 * kMiB), Path::kCopy, {}, memory.data(), memory.data() + kMiB);
  EXPECT_TRUE(flow.one_by_one);
  EXPECT_EQ(flow.begin_chunk(nullptr).name.chunk, 2U);
  EXPECT_FALSE(flow.can_begin());
  flow.in_flight = 0;
  EXPECT_TRUE(flow.can_begin());
  flow.prepare(between(kMemory, kMemory, 3 * kMiB), Path::kCopy, {}, memory.data() + kMiB, memory.data());
  EXPECT_TRUE(flow.one_by_one);
  EXPECT_EQ(flow.begin_chunk(nullptr).name.chunk, 0U);
  flow.prepare(between(kMemory, kMemory, 3 * kMiB), Path::kCopy, {}, memory.data(), memory.data() + 3 * kMiB);
  EXPECT_FALSE(flow.one_by_one);
}

TEST(FlowTest, BeginsNothingMoreOnceItFailed) {
  std::vector<std::byte> memory(4 * kMiB);
  Flow flow;
  flow.prepare(between(kBlock, kMemory, 4 * kMiB), Path::kFromBlock, {}, nullptr, memory.data());
  const ChunkWork work = flow.begin_chunk(nullptr);
  EXPECT_EQ(work.entry, 100U);
  flow.result = fail(ErrorCode::kDataLoss, "lost");
  EXPECT_TRUE(flow.is_begun());
  EXPECT_FALSE(flow.can_begin());
}

}  // namespace
}  // namespace terrace::mover
