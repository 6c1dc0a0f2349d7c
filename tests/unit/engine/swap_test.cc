// SPDX-License-Identifier: Apache-2.0
// Shows that tensors go to every tier and back with their bytes, that eviction cascades downward and drops clean copies
// for nothing, and what is fetched, filled with zeros, or neither.
#include <gmock/gmock.h>

#include <numeric>
#include <string>
#include <vector>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

TEST(Swap, AWriteComesBackFromEveryPlace) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 77);
  EXPECT_EQ(harness.read(client, a), 77u);
  for (const std::uint32_t place : {kHost, kDevice, shm::kPlaceBlock, kDevice, shm::kPlaceBlock, kHost}) {
    const auto moved = harness.ask(client.id, Move{place, {a}});
    ASSERT_TRUE(moved) << moved.error().message;
    EXPECT_EQ(std::get<Located>(*moved).tensors.at(0).place, place);
    EXPECT_EQ(harness.read(client, a), 77u);
    EXPECT_EQ(harness.read(client, a, kHost), 77u);
  }
}

TEST(Swap, MoreThanTheUpperTiersHold) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  std::vector<Handle> tensors;
  for (int i = 0; i < 40; ++i) tensors.push_back(harness.create(client, std::to_string(i), kMiB));
  for (std::uint64_t round = 1; round < 4; ++round) {
    for (std::uint64_t i = 0; i < 40; ++i) harness.write(client, tensors[i], round * 1'000'000 + i * 1000);
    for (std::uint64_t i = 0; i < 40; ++i) EXPECT_EQ(harness.read(client, tensors[i]), round * 1'000'000 + i * 1000);
  }
  EXPECT_GT(link_bytes(harness, mover::LinkKind::kDeviceToHost), 0u);
  EXPECT_GT(link_bytes(harness, mover::LinkKind::kBlockWrite), 0u);
  EXPECT_GT(link_bytes(harness, mover::LinkKind::kHostToDevice), 0u);
}

TEST(Swap, CleanCopiesAreDroppedForNothing) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  std::vector<Handle> tensors;
  for (int i = 0; i < 20; ++i) tensors.push_back(harness.create(client, std::to_string(i), kMiB));
  for (const Handle tensor : tensors) harness.write(client, tensor, 5);
  for (const Handle tensor : tensors) ASSERT_TRUE(harness.ask(client.id, Evict{{tensor}}));
  const std::uint64_t written = link_bytes(harness, mover::LinkKind::kBlockWrite);
  const std::uint64_t down = link_bytes(harness, mover::LinkKind::kDeviceToHost);
  for (const Handle tensor : tensors) EXPECT_EQ(harness.read(client, tensor), 5u);
  EXPECT_EQ(link_bytes(harness, mover::LinkKind::kBlockWrite), written);
  EXPECT_EQ(link_bytes(harness, mover::LinkKind::kDeviceToHost), down);
}

TEST(Swap, AnOverwriteFetchesNothing) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 1);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  harness.write(client, a, 2);
  EXPECT_EQ(link_bytes(harness, mover::LinkKind::kBlockRead), 0u);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  EXPECT_EQ(harness.read(client, a), 2u);
}

TEST(Swap, AFirstWriteLeaseSeesZeros) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle dirt = harness.create(client, "dirt", kMiB);
  harness.write(client, dirt, 999);
  ASSERT_TRUE(harness.ask(client.id, DeleteTensors{{dirt}}));
  const Handle a = harness.create(client, "a", kMiB);
  ASSERT_TRUE(harness.acquire(client, kDevice, shm::Mode::kWrite, {a}));
  EXPECT_EQ(harness.look(client, a), 0u);
  harness.release(client, a, shm::Mode::kWrite);
  EXPECT_EQ(harness.read(client, a), 0u) << "it has content now: zeros";
}

TEST(Swap, BlockReadsPassThroughMemoryWhereThereIsRoom) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 3);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  EXPECT_EQ(harness.read(client, a), 3u);
  EXPECT_EQ(link_bytes(harness, mover::LinkKind::kHostToDevice), kMiB);
  ASSERT_TRUE(harness.ask(client.id, Evict{{a}}));
}

TEST(Swap, BlockReadsGoStraightWhereMemoryIsLeased) {
  Harness harness(three_tiers(4 * kMiB, 2 * kMiB));
  OpenSession open;
  const auto& client = *harness.open(open);
  const Handle a = harness.create(client, "a", kMiB);
  const Handle b = harness.create(client, "b", 2 * kMiB);
  harness.write(client, a, 3);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  ASSERT_TRUE(harness.acquire(client, kHost, shm::Mode::kOverwrite, {b}));
  EXPECT_EQ(harness.read(client, a), 3u);
  EXPECT_EQ(link_bytes(harness, mover::LinkKind::kHostToDevice), 0u);
  harness.write(client, a, 4);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {a}}));
  EXPECT_EQ(harness.read(client, a), 4u);
  harness.release(client, b, shm::Mode::kOverwrite);
}

TEST(Swap, TwoDevicesPassThroughMemory) {
  Options options = three_tiers();
  options.tiers.insert(options.tiers.begin() + 1, tier_of("device:1", tier::Kind::kDevice, 4 * kMiB));
  Harness harness(options);
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 11, kDevice);
  EXPECT_EQ(harness.read(client, a, kDevice + 1), 11u);
  harness.write(client, a, 12, kDevice + 1, shm::Mode::kWrite);
  EXPECT_EQ(harness.read(client, a, kDevice), 12u);
}

TEST(Swap, HomesInMemoryWithoutABlockTier) {
  Options options;
  options.tiers = {tier_of("device:0", tier::Kind::kDevice, 4 * kMiB),
                   tier_of("memory", tier::Kind::kMemory, 8 * kMiB)};
  Harness harness(options);
  const auto& client = *harness.open();
  std::vector<Handle> tensors;
  for (int i = 0; i < 8; ++i) tensors.push_back(harness.create(client, std::to_string(i), kMiB));
  for (std::uint64_t i = 0; i < 8; ++i) harness.write(client, tensors[i], 1000 * i + 1);
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_EQ(harness.read(client, tensors[i]), 1000 * i + 1);
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_EQ(harness.read(client, tensors[i], kHost), 1000 * i + 1);
  const auto full = harness.ask(client.id, CreateTensors{{spec_of("more", 1)}});
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kResourceExhausted);
}

TEST(Swap, OneTierAlone) {
  Options options;
  options.tiers = {tier_of("memory", tier::Kind::kMemory, 8 * kMiB)};
  Harness harness(options);
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", 3 * kMiB);
  harness.write(client, a, 8, kHost);
  EXPECT_EQ(harness.read(client, a, kHost), 8u);
  const auto nowhere = harness.acquire(client, kDevice, shm::Mode::kRead, {a});
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(nowhere.error().message, ::testing::HasSubstr("this daemon has host"));
}

TEST(Swap, ADeviceAlone) {
  Options options;
  options.tiers = {tier_of("device:0", tier::Kind::kDevice, 4 * kMiB)};
  Harness harness(options);
  const auto& client = *harness.open();
  std::vector<Handle> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(harness.create(client, std::to_string(i), kMiB));
  for (std::uint64_t i = 0; i < 4; ++i) harness.write(client, tensors[i], 1000 * i);
  ASSERT_TRUE(harness.ask(client.id, Evict{tensors})) << "a hint: there is nothing below";
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(harness.read(client, tensors[i]), 1000 * i);
  EXPECT_TRUE(harness.transfers.empty());
}

TEST(Swap, HomesSlideTogetherWhenFreeBytesLieApart) {
  Options options;
  options.tiers = {tier_of("memory", tier::Kind::kMemory, 4 * kMiB)};
  Harness harness(options);
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  const Handle b = harness.create(client, "b", kMiB);
  const Handle c = harness.create(client, "c", kMiB);
  const Handle d = harness.create(client, "d", kMiB);
  for (const Handle tensor : {a, b, c, d}) harness.write(client, tensor, 100 * index(tensor.slot), kHost);
  ASSERT_TRUE(harness.ask(client.id, DeleteTensors{{a, c}}));
  const Handle e = harness.create(client, "e", 2 * kMiB);
  harness.write(client, e, 5000, kHost);
  EXPECT_EQ(harness.read(client, b, kHost), 100u);
  EXPECT_EQ(harness.read(client, d, kHost), 300u);
  EXPECT_EQ(harness.read(client, e, kHost), 5000u);
}

TEST(Swap, CopiesSlideTogetherBeforeOneIsWrittenBack) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  std::vector<Handle> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(harness.create(client, std::to_string(i), kMiB));
  for (std::uint64_t i = 0; i < 4; ++i) harness.write(client, tensors[i], 100 * i);
  ASSERT_TRUE(harness.ask(client.id, DontNeed{{tensors[0], tensors[2]}}));
  const std::uint64_t before = link_bytes(harness, mover::LinkKind::kDeviceToHost);
  const Handle wide = harness.create(client, "wide", 2 * kMiB);
  harness.write(client, wide, 5000);
  EXPECT_EQ(link_bytes(harness, mover::LinkKind::kDeviceToHost), before);
  EXPECT_EQ(harness.read(client, tensors[1]), 100u);
  EXPECT_EQ(harness.read(client, tensors[3]), 300u);
  EXPECT_EQ(harness.read(client, wide), 5000u);
}

// What the device and memory have is dirty and fills them, but for what is given up: no room below is to be had without
// the drives.
struct Full {
  explicit Full(const std::vector<std::uint64_t>& sizes, std::uint64_t memory = 8) : harness(options(sizes)) {
    for (std::uint64_t i = 0; i < memory; ++i)
      harness.write(client, harness.create(client, "host" + std::to_string(i), kMiB), i, kHost);
    for (const std::uint64_t size : sizes) {
      tensors.push_back(harness.create(client, std::to_string(tensors.size()), size));
      harness.write(client, tensors.back(), tensors.size());
    }
    harness.settle();
  }
  // None of it is written down before it must be.
  static Options options(const std::vector<std::uint64_t>& sizes) {
    Options options = three_tiers(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}));
    for (TierOptions& tier : options.tiers) tier.high_mark = 1;
    return options;
  }
  std::uint64_t written() {
    return link_bytes(harness, mover::LinkKind::kBlockWrite) + link_bytes(harness, mover::LinkKind::kDeviceToHost);
  }

  Harness harness;
  Harness::Client& client = *harness.open();
  std::vector<Handle> tensors;
};

constexpr std::uint64_t kHalf = kMiB / 2;

TEST(Swap, CopiesSlideFartherWhereOneWouldBeWrittenToTheDrives) {
  // Half of what is wanted is free at either end, and thirteen times as much lies between.
  const std::vector<std::uint64_t> sizes(28, kHalf);
  for (const std::uint64_t memory : {8U, 0U}) {
    Full full(sizes, memory);
    ASSERT_TRUE(full.harness.ask(full.client.id, DontNeed{{full.tensors.front(), full.tensors.back()}}));
    const std::uint64_t before = full.written();
    full.harness.write(full.client, full.harness.create(full.client, "wide", kMiB), 5000);
    EXPECT_EQ(full.written() == before, memory == 8) << "of " << memory << " MiB";
    for (std::uint64_t i = 1; i + 1 < sizes.size(); ++i)
      EXPECT_EQ(full.harness.read(full.client, full.tensors[i]), i + 1);
  }
}

TEST(Swap, CopiesSlideForTheLargestOfASetWhereALeasedOneStaysBetween) {
  // Free are tensors 0, 3 and 5, half as large as the larger one of the set; 2 stays.
  Full full({kHalf, kMiB, kMiB, kHalf, kHalf, kHalf, kMiB, kMiB});
  const auto& tensors = full.tensors;
  ASSERT_TRUE(full.harness.reply(full.harness.send(full.client.id, Acquire{kDevice, shm::Mode::kRead, {tensors[2]}})));
  ASSERT_TRUE(full.harness.ask(full.client.id, DontNeed{{tensors[0], tensors[3], tensors[5]}}));
  const Handle wide = full.harness.create(full.client, "wide", kMiB);
  const Handle narrow = full.harness.create(full.client, "narrow", kHalf);
  const std::uint64_t before = full.written();
  const RequestId asked = full.harness.send(full.client.id, Acquire{kDevice, shm::Mode::kOverwrite, {wide, narrow}});
  full.harness.settle();
  EXPECT_TRUE(full.harness.reply(asked));
  EXPECT_EQ(full.written(), before);
}

TEST(Swap, WhoNeedsAllOfATierWaitsForACopyThatSlidesThere) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle wide = harness.create(client, "wide", 2 * kMiB);
  const Handle whole = harness.create(client, "whole", 4 * kMiB);
  harness.write(client, wide, 5000, kHost);
  std::vector<Handle> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(harness.create(client, std::to_string(i), kMiB));
  for (std::uint64_t i = 0; i < 4; ++i) harness.write(client, tensors[i], 100 * i);
  harness.settle();
  ASSERT_TRUE(harness.ask(client.id, DontNeed{{tensors[0], tensors[2]}}));
  harness.send(client.id, Prefetch{kDevice, {wide}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  ASSERT_EQ(harness.transfers.front().link.kind, mover::LinkKind::kMemcpy) << "a copy slides, and has both places";
  const RequestId asked = harness.send(client.id, Acquire{kDevice, shm::Mode::kOverwrite, {whole}});
  harness.settle();
  EXPECT_TRUE(harness.reply(asked));
}

// Room in the device comes of a clean copy that goes at once, and of a dirty one, for which memory makes room by a
// slide of the very tensor that is asked for.
TEST(Swap, WhoIsFetchedFromACopyThatSlidesWaitsForIt) {
  Options options = three_tiers(4 * kMiB, 4 * kMiB);
  for (TierOptions& tier : options.tiers) tier.high_mark = 1;
  Harness harness(options);
  const auto& client = *harness.open();
  const auto written = [&](const char* name, std::uint64_t bytes, std::uint64_t value, std::uint32_t place) {
    const Handle tensor = harness.create(client, name, bytes);
    harness.write(client, tensor, value, place);
    return tensor;
  };
  const Handle before = written("before", kHalf, 1, kHost);
  const Handle wanted = written("wanted", 2 * kMiB, 1000, kHost);
  const Handle behind = written("behind", kHalf, 1, kHost);
  const Handle stays = written("stays", kMiB, 3000, kHost);
  ASSERT_TRUE(harness.ask(client.id, Pin{kHost, {stays}}));
  const Handle clean = written("clean", 2 * kMiB, 5000, kDevice);
  ASSERT_TRUE(harness.ask(client.id, Move{shm::kPlaceBlock, {clean}}));
  const Handle dirty = written("dirty", kMiB, 7000, kDevice);
  EXPECT_EQ(harness.read(client, clean), 5000u);
  ASSERT_TRUE(harness.ask(client.id, Pin{kDevice, {written("pinned", kMiB, 9000, kDevice)}}));
  harness.settle();
  ASSERT_TRUE(harness.ask(client.id, DontNeed{{before, behind}}));
  const RequestId asked = harness.send(client.id, Acquire{kDevice, shm::Mode::kRead, {wanted}});
  ASSERT_EQ(harness.transfers.size(), 1u);
  EXPECT_EQ(harness.transfers.front().link.kind, mover::LinkKind::kMemcpy) << "it slides, and is not fetched meanwhile";
  EXPECT_EQ(harness.status().tiers[0].used_bytes, 2 * kMiB) << "though there is room for it";
  harness.settle();
  ASSERT_TRUE(harness.reply(asked));
  EXPECT_EQ(harness.look(client, wanted), 1000u);
  EXPECT_EQ(harness.read(client, dirty), 7000u);
}

TEST(Swap, ColdDirtyCopiesAreCleanedEarly) {
  Harness harness(three_tiers(2 * kMiB, 4 * kMiB));
  const auto& client = *harness.open();
  std::vector<Handle> tensors;
  for (int i = 0; i < 4; ++i) tensors.push_back(harness.create(client, std::to_string(i), kMiB));
  for (const Handle tensor : tensors) harness.write(client, tensor, 9, kHost);
  harness.settle();
  EXPECT_GT(link_bytes(harness, mover::LinkKind::kBlockWrite), 0u) << "over the high mark, the coldest is written back";
  EXPECT_EQ(harness.status().tiers[1].evictions[0], 0u);
  ASSERT_FALSE(harness.pressure.empty());
  EXPECT_TRUE(harness.pressure.back().above);
  for (const Handle tensor : tensors) EXPECT_EQ(harness.read(client, tensor, kHost), 9u);
}

TEST(Swap, AFewAtATimeAreCleanedEarly) {
  Options options = three_tiers(2 * kMiB, 4 * kMiB);
  options.tiers[1].high_mark = 0.25;
  Harness harness(options);
  const auto& client = *harness.open();
  std::vector<Handle> tensors;
  for (int i = 0; i < 200; ++i) tensors.push_back(harness.create(client, std::to_string(i), 4 * kPageBytes));
  std::size_t most = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const RequestId asked = harness.send(client.id, Acquire{kHost, shm::Mode::kOverwrite, {tensors[i]}});
    harness.complete_orders();
    ASSERT_TRUE(harness.reply(asked));
    harness.fill(client, tensors[i], 10 * i);
    harness.release(client, tensors[i], shm::Mode::kOverwrite);
    harness.advance(harness.now + Duration(1));
    most = std::max(most, harness.transfers.size());
  }
  EXPECT_EQ(most, 4u);
  harness.settle();
  for (std::uint64_t i = 0; i < 200; ++i) EXPECT_EQ(harness.read(client, tensors[i], kHost), 10 * i);
}

}  // namespace
}  // namespace terrace::engine
