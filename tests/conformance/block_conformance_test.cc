// SPDX-License-Identifier: Apache-2.0
// Shows that the block tier never hands out a wrong byte: bit rot, other tensors' and earlier bytes, truncation and
// scribbling clients are told from the real thing, and each harms one tensor alone.
#include <fcntl.h>

#include <future>

#include "base/fd.h"
#include "conformance/rig.h"

namespace terrace::conformance {
namespace {

class BlockConformance : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 3 * kMiB + 100;

  static mover::Transfer copy(const tier::Location& from, const tier::Location& to, std::uint64_t bytes = kBytes) {
    return {.tensor = 21, .version = 5, .bytes = bytes, .from = from, .to = to};
  }
  // A tensor on the block tier.
  static tier::Location stored(Rig& rig, std::uint64_t bytes = kBytes) {
    const auto home = rig.place(kBlock, bytes);
    const auto done = rig.run(copy(rig.random_source(bytes), home, bytes));
    EXPECT_TRUE(done.result) << done.result.error().message;
    return home;
  }
  static void flip_bit(const Rig& rig, std::uint64_t offset) {
    const Fd file(open(rig.folder.file("block-0").c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(pread(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    byte = static_cast<char>(byte ^ 4);
    ASSERT_EQ(pwrite(file.get(), &byte, 1, static_cast<off_t>(offset)), 1);
    ASSERT_EQ(fsync(file.get()), 0);
  }
  static void expect_lost(const mover::TransferDone& done) {
    ASSERT_FALSE(done.result);
    EXPECT_EQ(done.result.error().code, ErrorCode::kDataLoss) << done.result.error().message;
    EXPECT_EQ(done.failed, kBlock);
  }
};

TEST_F(BlockConformance, TheNameIsPartOfTheChecksum) {
  Rig rig;
  const auto home = stored(rig);
  const auto target = rig.place(kMemory, kBytes);
  auto wrong = copy(home, target);
  wrong.version = 6;
  expect_lost(rig.run(wrong));
  wrong = copy(home, target);
  wrong.tensor = 22;
  expect_lost(rig.run(wrong));
  EXPECT_TRUE(rig.run(copy(home, target)).result);
  EXPECT_GE(rig.mover->counts().mismatched_chunks, 2U);
}

TEST_F(BlockConformance, AChunkInAnothersPlaceIsRefused) {
  Rig rig;
  const auto home = stored(rig, 2 * kMiB);
  auto swapped = home;
  const std::uint64_t start = home.pieces[0].offset;
  swapped.pieces = {};
  swapped.pieces.push({start + kMiB, kMiB});
  swapped.pieces.push({start, kMiB});
  expect_lost(rig.run(copy(swapped, rig.place(kMemory, 2 * kMiB), 2 * kMiB)));
}

TEST_F(BlockConformance, AFlippedBitIsLossOfThatTensorAlone) {
  Rig rig;
  const auto first = stored(rig);
  const auto second = stored(rig);
  const auto target = rig.place(kMemory, kBytes);
  flip_bit(rig, first.pieces[0].offset + 2 * kMiB + 17);
  expect_lost(rig.run(copy(first, target)));
  EXPECT_EQ(rig.mover->counts().reread_chunks, 1U);
  EXPECT_EQ(rig.mover->counts().mismatched_chunks, 1U);
  EXPECT_TRUE(rig.run(copy(second, target)).result);
  // Written anew, it is whole again.
  EXPECT_TRUE(rig.run(copy(rig.random_source(kBytes), first)).result);
  EXPECT_TRUE(rig.run(copy(first, target)).result);
}

TEST_F(BlockConformance, WhatLiesBehindTheTensorIsNotItsOwn) {
  Rig rig;
  const auto home = stored(rig, 5000);
  flip_bit(rig, home.pieces[0].offset + 5000);
  EXPECT_TRUE(rig.run(copy(home, rig.place(kMemory, 5000), 5000)).result);
}

TEST_F(BlockConformance, ATruncatedFileIsLoss) {
  Rig rig;
  const auto home = stored(rig);
  ASSERT_EQ(truncate(rig.folder.file("block-0").c_str(), static_cast<off_t>(kMiB + 5000)), 0);
  const auto done = rig.run(copy(home, rig.place(kMemory, kBytes)));
  expect_lost(done);
  EXPECT_NE(done.result.error().message.find("truncated"), std::string::npos) << done.result.error().message;
}

TEST_F(BlockConformance, AWriteThatFailsIsAnErrorOfTheTier) {
  Rig rig;
  // The ring's file is one that cannot be written: every write fails as a dying disk's do.
  rig.mover.reset();
  rig.ring = must(mover::Ring::create({}));
  const Fd read_only(open(rig.folder.file("block-0").c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  ASSERT_EQ(dup3(read_only.get(), rig.block->descriptors()[0], O_CLOEXEC), rig.block->descriptors()[0]);
  rig.mover = must(mover::Mover::create(*rig.ring, *rig.workers,
                                        {.mapped = {&rig.device, &rig.memory, nullptr}, .block = rig.block.get()}, {}));
  const auto source = rig.random_source(kBytes);
  const auto done = rig.run(copy(source, rig.place(kBlock, kBytes)));
  ASSERT_FALSE(done.result);
  EXPECT_EQ(done.result.error().code, ErrorCode::kInternal);
  EXPECT_EQ(done.result.error().system_error, EBADF);
  EXPECT_EQ(done.failed, kBlock);
  EXPECT_EQ(rig.mover->in_flight(), 0U);
  EXPECT_GT(rig.mover->counts().io_errors, 0U);
}

TEST_F(BlockConformance, AHomeMayLieInPieces) {
  Rig rig;
  constexpr std::uint64_t kPiece = 260 * kKiB;  // no multiple of a chunk
  tier::Location home = rig.place(kBlock, kPiece * 16);
  const std::uint64_t start = home.pieces[0].offset;
  home.pieces = {};
  for (std::uint64_t index = 0; index < tier::kPiecesMax; ++index)
    home.pieces.push({start + 2 * index * kPiece, kPiece});
  constexpr std::uint64_t kSize = kPiece * tier::kPiecesMax - 1000;
  const auto source = rig.random_source(kSize);
  const auto target = rig.place(kMemory, kSize);
  ASSERT_TRUE(rig.run(copy(source, home, kSize)).result);
  ASSERT_TRUE(rig.run(copy(home, target, kSize)).result);
  EXPECT_TRUE(equal(rig.bytes(source, kSize), rig.bytes(target, kSize)));
}

TEST_F(BlockConformance, SeveralFilesStripe) {
  Rig rig({.block_files = 3});
  rig.place(kBlock, 300 * kKiB);  // so that chunks straddle stripes
  const auto home = rig.place(kBlock, 7 * kMiB + 9);
  const auto source = rig.random_source(7 * kMiB + 9);
  const auto target = rig.place(kMemory, 7 * kMiB + 9);
  ASSERT_TRUE(rig.run(copy(source, home, 7 * kMiB + 9)).result);
  ASSERT_TRUE(rig.run(copy(home, target, 7 * kMiB + 9)).result);
  EXPECT_TRUE(equal(rig.bytes(source, 7 * kMiB + 9), rig.bytes(target, 7 * kMiB + 9)));
}

TEST_F(BlockConformance, ADepthOfOneSuffices) {
  Rig rig({.mover = {.queue_depth = 1, .chunks_max = 1}});
  const auto home = stored(rig);
  EXPECT_TRUE(rig.run(copy(home, rig.place(kMemory, kBytes))).result);
}

// Holds the only copy worker until it is let go.
class Plug final : public mover::Job {
 public:
  void run() override { let_go_.get_future().wait(); }
  void done() override {}
  void let_go() { let_go_.set_value(); }

 private:
  std::promise<void> let_go_;
};

// What is read waits for the only copy worker to be checked: it keeps nothing else from the disk.
TEST_F(BlockConformance, NoMoreIsUnderWayThanTheQueueIsDeep) {
  Plug plug;  // goes after the worker that may hold it
  Rig rig({.copiers = 1, .mover = {.queue_depth = 2, .chunks_max = 8}});
  const auto home = stored(rig, 8 * kMiB);
  rig.workers->submit(plug, mover::Workers::Lane::kCopy);
  auto transfer = copy(home, rig.place(kMemory, 8 * kMiB), 8 * kMiB);
  transfer.id = rig.next_id();
  rig.mover->start(transfer);
  while (rig.ring->io_in_flight() > 0) {
    EXPECT_LE(rig.ring->io_in_flight(), 2U);
    must(rig.ring->run_once(std::chrono::milliseconds(100)));
  }
  EXPECT_EQ(rig.mover->counts().block_read_bytes, 8 * kMiB);  // and nothing of it is checked
  plug.let_go();
  EXPECT_TRUE(rig.settle().at(transfer.id).result);
}

// A small chunk that comes alone is checked in the round in which it came, by the ring's own thread.
TEST_F(BlockConformance, ASmallChunkIsCheckedAsItComes) {
  Plug plug;  // goes after the worker that may hold it
  Rig rig({.copiers = 1});
  const auto home = stored(rig, 5000);
  rig.workers->submit(plug, mover::Workers::Lane::kCopy);
  auto transfer = copy(home, rig.place(kMemory, 5000), 5000);
  transfer.id = rig.next_id();
  rig.mover->start(transfer);
  while (rig.ring->io_in_flight() > 0) must(rig.ring->run_once(std::chrono::milliseconds(100)));
  EXPECT_EQ(rig.mover->in_flight(), 0U);
  plug.let_go();
  EXPECT_TRUE(rig.settle().at(transfer.id).result);
}

// What the ring was given for later before takes the whole of a round: the check is left over, the next read is not.
TEST_F(BlockConformance, WhatComesNextIsReadBeforeASmallChunkIsChecked) {
  struct Chore final : mover::Later {
    void run_later() override {}
  } chore;
  constexpr std::uint64_t kSmall = 64 * kKiB;
  Rig rig({.mover = {.queue_depth = 1, .chunks_max = 2}});
  const auto homes = {stored(rig, kSmall), stored(rig, kSmall)};
  for (const tier::Location& home : homes) {
    auto transfer = copy(home, rig.place(kMemory, kSmall), kSmall);
    transfer.id = rig.next_id();
    rig.mover->start(transfer);
  }
  ASSERT_EQ(rig.ring->io_in_flight(), 1U);
  while (rig.mover->counts().block_read_bytes == 0) {
    rig.ring->later(chore, mover::Ring::kLaterBytesMax);
    must(rig.ring->run_once(std::chrono::milliseconds(100)));
  }
  EXPECT_EQ(rig.ring->io_in_flight(), 1U);
  EXPECT_TRUE(rig.mover->take_transfers().empty());
  EXPECT_EQ(rig.settle().size(), 2U);
}

// As many small ones as are under way at once and more, all different: each comes, checked, whatever is left for a
// later round, and a mover that goes meanwhile waits for them.
TEST_F(BlockConformance, ManySmallChunksAreAllChecked) {
  constexpr std::uint64_t kSmall = 64 * kKiB;
  constexpr std::size_t kCount = 200;
  Rig rig;
  std::vector<mover::Transfer> coming;
  std::vector<tier::Location> sources;
  for (std::size_t index = 0; index < kCount; ++index) {
    sources.push_back(rig.random_source(kSmall));
    const auto home = rig.place(kBlock, kSmall);
    ASSERT_TRUE(rig.run(copy(sources.back(), home, kSmall)).result);
    coming.push_back(copy(home, rig.place(kMemory, kSmall), kSmall));
  }
  flip_bit(rig, coming[70].from.pieces[0].offset + 12345);
  for (mover::Transfer& transfer : coming) {
    transfer.id = rig.next_id();
    rig.mover->start(transfer);
  }
  const auto done = rig.settle();
  for (std::size_t index = 0; index < kCount; ++index) {
    EXPECT_EQ(done.at(coming[index].id).result.has_value(), index != 70) << index;
    if (index != 70) {
      EXPECT_TRUE(equal(rig.bytes(sources[index], kSmall), rig.bytes(coming[index].to, kSmall))) << index;
    }
  }
  for (mover::Transfer& transfer : coming) rig.mover->start(transfer);
  must(rig.ring->run_once(std::chrono::milliseconds(100)));
  rig.mover.reset();
  EXPECT_EQ(rig.ring->io_in_flight(), 0U);
}

TEST_F(BlockConformance, AScribblingClientGetsTheBytesOfTheDisk) {
  Plug plug;  // goes after the worker that may hold it
  Rig rig({.copiers = 1});
  constexpr std::uint64_t kChunk = tier::kChunkBytes;
  const auto home = rig.place(kBlock, kChunk);
  const auto source = rig.random_source(kChunk);
  ASSERT_TRUE(rig.run(copy(source, home, kChunk)).result);
  const auto target = rig.place(kMemory, kChunk);

  rig.workers->submit(plug, mover::Workers::Lane::kCopy);
  auto transfer = copy(home, target, kChunk);
  transfer.id = rig.next_id();
  rig.mover->start(transfer);
  while (rig.ring->io_in_flight() > 0) must(rig.ring->run_once(std::chrono::milliseconds(100)));
  // Read, and not yet checked: now the client writes where it must not.
  rig.bytes(target, kChunk)[1234] ^= std::byte{1};
  plug.let_go();
  const auto done = rig.settle().at(transfer.id);
  EXPECT_TRUE(done.result) << done.result.error().message;
  EXPECT_EQ(rig.mover->counts().reread_chunks, 1U);
  EXPECT_EQ(rig.mover->counts().mismatched_chunks, 0U);
  EXPECT_TRUE(equal(rig.bytes(source, kChunk), rig.bytes(target, kChunk)));
}

// What the ring has registered is pages: were a registration to outlive its segment, the next one at the same address
// would write the old one's bytes out.
TEST_F(BlockConformance, ARegistrationGoesWithItsSegment) {
  Rig rig;
  using Kind = mover::SegmentOrder::Kind;
  const tier::Extent segment{0, kSegmentBytes};
  tier::Location source{.tier = kDevice, .session = kSession, .pieces = tier::Pieces(segment)};
  const auto home = rig.place(kBlock, kSegmentBytes);
  const auto target = rig.place(kMemory, kSegmentBytes);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(rig.order(Kind::kAdd, kDevice, segment));
    const std::span<std::byte> bytes(rig.device.address(kSession, 0), kSegmentBytes);  // the same each time
    rig.fill(bytes);
    ASSERT_TRUE(rig.run(copy(source, home, kSegmentBytes)).result);
    ASSERT_TRUE(rig.run(copy(home, target, kSegmentBytes)).result);
    EXPECT_TRUE(equal(bytes, rig.bytes(target, kSegmentBytes)));
    const auto facts = rig.mover->facts();
    EXPECT_EQ(facts.registered_bytes, facts.registered_buffers ? 2 * kSegmentBytes : 0);
    ASSERT_TRUE(rig.order(Kind::kRemove, kDevice, segment));
  }
  rig.mover->drop(kSession);
  rig.settle();
  EXPECT_EQ(rig.mover->facts().registered_bytes, 0U);
}

// With one place in the queue it reads the first chunk, reads it again, and begins no other.
TEST_F(BlockConformance, AFailedTransferBeginsNothingMore) {
  Rig rig({.mover = {.queue_depth = 1, .chunks_max = 1}});
  const auto home = stored(rig, 9 * kMiB);
  flip_bit(rig, home.pieces[0].offset);
  expect_lost(rig.run(copy(home, rig.place(kMemory, 9 * kMiB), 9 * kMiB)));
  EXPECT_EQ(rig.mover->in_flight(), 0U);
  EXPECT_EQ(rig.mover->counts().block_read_bytes, 2 * kMiB);
}

// Every chunk of it fails, many at a time: there is one outcome.
TEST_F(BlockConformance, ATransferThatFailsEverywhereEndsOnce) {
  Rig rig;
  auto wrong = copy(stored(rig, 9 * kMiB), rig.place(kMemory, 9 * kMiB), 9 * kMiB);
  wrong.version = 4;
  expect_lost(rig.run(wrong));
  EXPECT_EQ(rig.mover->in_flight(), 0U);
}

TEST_F(BlockConformance, UrgentTransfersGoFirst) {
  Rig rig({.mover = {.queue_depth = 1, .chunks_max = 1}});
  const auto home = stored(rig, 8 * kMiB);
  const auto target = rig.place(kMemory, 8 * kMiB);
  auto slow = copy(home, target, 8 * kMiB);
  slow.urgency = mover::Class::kPrefetch;
  slow.id = rig.next_id();
  auto urgent = copy(rig.random_source(kMiB), rig.place(kDevice, kMiB), kMiB);
  urgent.urgency = mover::Class::kDemand;
  urgent.id = rig.next_id();
  rig.mover->start(slow);
  rig.mover->start(urgent);
  std::vector<TransferId> ended;
  while (ended.size() < 2) {
    must(rig.ring->run_once(std::chrono::milliseconds(100)));
    for (const auto& done : rig.mover->take_transfers()) ended.push_back(done.id);
  }
  EXPECT_EQ(ended.front(), urgent.id);
}

// The only copier takes what it is given in its order: it is given little at a time.
TEST_F(BlockConformance, UrgentCopiesDoNotWaitForAllThatWasBegunBefore) {
  Plug plug;  // goes after the worker that may hold it
  Rig rig({.copiers = 1});
  std::vector<mover::Transfer> copies;
  for (const std::uint64_t bytes : {16 * kMiB, 16 * kMiB, 4 * kMiB}) {
    copies.push_back(copy(rig.random_source(bytes), rig.place(kDevice, bytes), bytes));
    copies.back().id = rig.next_id();
  }
  rig.workers->submit(plug, mover::Workers::Lane::kCopy);
  copies[0].urgency = copies[1].urgency = mover::Class::kCleaning;
  for (const mover::Transfer& each : copies) rig.mover->start(each);
  plug.let_go();
  std::vector<TransferId> ended;
  while (ended.size() < 3) {
    must(rig.ring->run_once(std::chrono::milliseconds(100)));
    for (const auto& done : rig.mover->take_transfers()) ended.push_back(done.id);
  }
  EXPECT_EQ(ended.front(), copies[2].id);
}

}  // namespace
}  // namespace terrace::conformance
