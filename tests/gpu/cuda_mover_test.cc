// SPDX-License-Identifier: Apache-2.0
// Shows how the mover drives a GPU: memory is pinned by several threads, what is pinned is copied straight and in few
// events, what is not goes through memory that is, nothing completes before its event, and a device that fails or is
// lost fails its own transfers alone.
#include <atomic>
#include <thread>

#include "conformance/rig.h"
#include "gpu/on_fake.h"

namespace terrace::conformance {
namespace {

using fake_cuda::Call;
using fake_cuda::count;
using fake_cuda::set;
using fake_cuda::set_fault;

mover::Transfer copy(const tier::Location& from, const tier::Location& to, std::uint64_t bytes) {
  return {.tensor = 11, .version = 3, .bytes = bytes, .from = from, .to = to};
}

class CudaMover : public fake_cuda::OnFake {
 protected:
  // Runs the ring until `condition` holds; the transfers that ended meanwhile are left to settle().
  static bool eventually(Rig& rig, const std::function<bool()>& condition) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      must(rig.ring->run_once(std::chrono::milliseconds(20)));
      if (std::chrono::steady_clock::now() > limit) return false;
    }
    return true;
  }
  // A source in memory that is pinned by now.
  static tier::Location pinned_source(Rig& rig, std::uint64_t bytes) {
    const auto source = rig.random_source(bytes);
    const std::uint64_t whole = align_up(source.pieces[0].end(), kSegmentBytes);
    EXPECT_TRUE(eventually(rig, [&] { return rig.mover->facts().pinned_bytes >= whole; }));
    return source;
  }
  std::uint64_t copies() const { return count(control, Call::kCopyUp) + count(control, Call::kCopyDown); }
};

TEST_F(CudaMover, PinnedMemoryIsCopiedStraightInLargePieces) {
  Rig rig;
  constexpr std::uint64_t kBytes = 8 * kMiB;
  const auto source = pinned_source(rig, kBytes);
  const auto target = rig.place(kDevice, kBytes);
  const auto before = copies();
  ASSERT_TRUE(rig.run(copy(source, target, kBytes)).result);
  EXPECT_EQ(copies() - before, 2U);  // of 4 MiB
  EXPECT_TRUE(equal(rig.bytes(source, kBytes), rig.content(target, kBytes)));
}

// The driver promises nothing about one copy of two registrations.
TEST_F(CudaMover, ACopyThatStraddlesRegistrationsIsCutAtTheirEdge) {
  Rig rig;
  rig.place(kMemory, kSegmentBytes - kMiB);
  const auto source = pinned_source(rig, 3 * kMiB);
  const auto target = rig.place(kDevice, 3 * kMiB);
  const auto before = copies();
  ASSERT_TRUE(rig.run(copy(source, target, 3 * kMiB)).result);
  EXPECT_EQ(copies() - before, 2U);
  EXPECT_TRUE(equal(rig.bytes(source, 3 * kMiB), rig.content(target, 3 * kMiB)));
}

TEST_F(CudaMover, MemoryThatCouldNotBePinnedIsNotUsedAsIfItWere) {
  Rig rig;
  set_fault(control, Call::kHostRegister, cuda::kOutOfMemory, 100);
  const auto source = rig.random_source(5 * kMiB + 3);
  ASSERT_TRUE(eventually(rig, [&] { return rig.mover->facts().refused_bytes > 0; }));
  const auto target = rig.place(kDevice, 5 * kMiB + 3);
  const auto back = rig.place(kMemory, 5 * kMiB + 3);
  ASSERT_TRUE(rig.run(copy(source, target, 5 * kMiB + 3)).result);
  ASSERT_TRUE(rig.run(copy(target, back, 5 * kMiB + 3)).result);
  EXPECT_EQ(rig.mover->facts().pinned_bytes, 0U);
  EXPECT_TRUE(equal(rig.bytes(source, 5 * kMiB + 3), rig.bytes(back, 5 * kMiB + 3)));
}

TEST_F(CudaMover, RegistrationsGoBeforeTheirMemoryDoes) {
  const auto registered = control.registered_bytes.load();
  {
    Rig rig;
    pinned_source(rig, kMiB);
    EXPECT_GT(control.registered_bytes.load(), registered);
    const auto spare = control.registered_bytes.load() - registered - kSegmentBytes;
    ASSERT_TRUE(rig.order(mover::SegmentOrder::Kind::kRemove, kMemory, {0, kSegmentBytes}));
    EXPECT_EQ(control.registered_bytes.load(), registered + spare);
  }
  EXPECT_EQ(control.registered_bytes.load(), registered);
}

TEST_F(CudaMover, SeveralPiecesArePinnedAtOnceAndOneThatFailsKeepsNoOtherFromIt) {
  Rig rig;
  control.hold_registering = 1;
  rig.place(kMemory, 4 * kSegmentBytes);
  EXPECT_TRUE(eventually(rig, [&] { return control.registering == 2; })) << "of two threads";
  EXPECT_EQ(rig.mover->facts().pinned_bytes, 0U);
  set_fault(control, Call::kHostRegister, cuda::kOutOfMemory);  // the next to begin
  control.hold_registering = 0;
  EXPECT_TRUE(eventually(rig, [&] { return rig.mover->facts().refused_bytes == kSegmentBytes; }));
  EXPECT_TRUE(eventually(rig, [&] { return rig.mover->facts().pinned_bytes == 3 * kSegmentBytes; }));
}

// What is being pinned is let go of when that is over; what nobody has begun to pin is not begun.
TEST_F(CudaMover, MemoryLeavesWhileItIsPinned) {
  Rig rig;
  const auto registered = control.registered_bytes.load();
  control.hold_registering = 1;
  rig.place(kMemory, 5 * kSegmentBytes);
  EXPECT_TRUE(eventually(rig, [&] { return control.registering == 2; }));
  const auto asked = count(control, Call::kHostRegister);
  rig.mover->start(mover::SegmentOrder{.kind = mover::SegmentOrder::Kind::kRemove,
                                       .session = kSession,
                                       .tier = kMemory,
                                       .extent = {0, 5 * kSegmentBytes}});
  for (int turn = 0; turn < 3; ++turn) must(rig.ring->run_once(std::chrono::milliseconds(10)));
  EXPECT_TRUE(rig.mover->take_segments().empty()) << "memory left that was being pinned";
  control.hold_registering = 0;
  rig.settle();
  const auto done = rig.mover->take_segments();
  ASSERT_EQ(done.size(), 1U);
  EXPECT_TRUE(done[0].result) << done[0].result.error().message;
  EXPECT_EQ(control.registered_bytes.load(), registered);
  EXPECT_EQ(count(control, Call::kHostRegister), asked);
  EXPECT_EQ(rig.mover->facts().pinned_bytes, 0U);
  EXPECT_EQ(rig.mover->facts().refused_bytes, 0U);
}

TEST_F(CudaMover, StopsWhileMemoryIsPinned) {
  const auto registered = control.registered_bytes.load();
  std::atomic<bool> stops = false;
  std::jthread driver;
  {
    Rig rig;
    control.hold_registering = 1;
    rig.place(kMemory, 8 * kSegmentBytes);
    EXPECT_TRUE(eventually(rig, [&] { return control.registering == 2; }));
    driver = std::jthread([&] {
      stops.wait(false);
      control.hold_registering = 0;
    });
    stops = true;
    stops.notify_all();
  }
  EXPECT_EQ(control.registered_bytes.load(), registered);
}

TEST_F(CudaMover, ManySmallCopiesShareFewEvents) {
  Rig rig;
  constexpr std::uint64_t kBytes = 64 * kKiB;
  constexpr std::size_t kTensors = 60;
  std::vector<tier::Location> sources;
  std::vector<tier::Location> targets;
  for (std::size_t each = 0; each < kTensors; ++each) sources.push_back(rig.random_source(kBytes));
  pinned_source(rig, kBytes);
  for (std::size_t each = 0; each < kTensors; ++each) targets.push_back(rig.place(kDevice, kBytes));
  const auto events = count(control, Call::kEventRecord);
  control.hold = 1;
  for (std::size_t each = 0; each < kTensors; ++each) {
    auto transfer = copy(sources[each], targets[each], kBytes);
    transfer.id = rig.next_id();
    rig.mover->start(transfer);
  }
  control.hold = 0;
  const auto done = rig.settle();
  ASSERT_EQ(done.size(), kTensors);
  for (std::size_t each = 0; each < kTensors; ++each)
    EXPECT_TRUE(equal(rig.bytes(sources[each], kBytes), rig.content(targets[each], kBytes)));
  EXPECT_LE(count(control, Call::kEventRecord) - events, 4U);
}

// Those that go on where the one before them ends are copied together, up and down; bytes and calls are counted.
TEST_F(CudaMover, SmallTensorsThatLieTogetherAreOneCopy) {
  Rig rig;
  constexpr std::uint64_t kBytes = 16 * kKiB;
  constexpr std::size_t kTensors = 1000;
  std::vector<tier::Location> there;
  std::vector<tier::Location> device;
  std::vector<tier::Location> back;
  for (std::size_t each = 0; each < kTensors; ++each) there.push_back(rig.random_source(kBytes));
  for (std::size_t each = 0; each < kTensors; ++each) back.push_back(rig.place(kMemory, kBytes));
  pinned_source(rig, kBytes);
  for (std::size_t each = 0; each < kTensors; ++each) device.push_back(rig.place(kDevice, kBytes));
  const auto move = [&](const std::vector<tier::Location>& from, const std::vector<tier::Location>& to) {
    const auto before = copies() + count(control, Call::kEventRecord);
    control.hold = 1;
    for (std::size_t each = 0; each < kTensors; ++each) {
      auto transfer = copy(from[each], to[each], kBytes);
      transfer.id = rig.next_id();
      rig.mover->start(transfer);
    }
    control.hold = 0;
    for (const auto& [id, done] : rig.settle()) EXPECT_TRUE(done.result);
    EXPECT_LE(copies() + count(control, Call::kEventRecord) - before, kTensors / 8);
  };
  move(there, device);
  move(device, back);
  for (std::size_t each = 0; each < kTensors; ++each)
    ASSERT_TRUE(equal(rig.bytes(there[each], kBytes), rig.bytes(back[each], kBytes))) << each;
}

TEST_F(CudaMover, ACopyOfSeveralThatFailsFailsThemAndNoneAfterThem) {
  Rig rig;
  constexpr std::uint64_t kBytes = 16 * kKiB;
  std::vector<mover::Transfer> transfers;
  std::vector<tier::Location> sources;
  for (int each = 0; each < 4; ++each) sources.push_back(rig.random_source(kBytes));
  pinned_source(rig, kBytes);
  for (const auto& source : sources) {
    transfers.push_back(copy(source, rig.place(kDevice, kBytes), kBytes));
    transfers.back().id = rig.next_id();
  }
  control.hold = 1;
  for (const auto& transfer : transfers) rig.mover->start(transfer);  // the first by itself, at once
  set_fault(control, Call::kCopyUp, cuda::kInvalidValue);             // the three others', as their event is recorded
  control.hold = 0;
  const auto done = rig.settle();
  ASSERT_EQ(done.size(), 4U);
  EXPECT_TRUE(done.at(transfers[0].id).result);
  for (std::size_t each = 1; each < transfers.size(); ++each) EXPECT_FALSE(done.at(transfers[each].id).result) << each;
  EXPECT_TRUE(rig.run(copy(sources[0], transfers[1].to, kBytes)).result);
}

TEST_F(CudaMover, WhatNobodyWaitsForGoesInPiecesOfSixteenMebibytes) {
  Rig rig;
  constexpr std::uint64_t kBytes = 64 * kMiB;
  const auto source = pinned_source(rig, kBytes);
  const auto target = rig.place(kDevice, kBytes);
  auto transfer = copy(source, target, kBytes);
  transfer.urgency = mover::Class::kPrefetch;
  const auto before = copies();
  const auto events = count(control, Call::kEventRecord);
  ASSERT_TRUE(rig.run(transfer).result);
  EXPECT_EQ(copies() - before, kBytes / kSegmentBytes);  // each of which is a registration here
  EXPECT_EQ(count(control, Call::kEventRecord) - events, 4U);
  EXPECT_TRUE(equal(rig.bytes(source, kBytes), rig.content(target, kBytes)));
}

TEST_F(CudaMover, NothingEndsBeforeItsEvent) {
  Rig rig;
  const auto source = pinned_source(rig, kMiB);
  const auto target = rig.place(kDevice, kMiB);
  control.hold = 1;
  auto transfer = copy(source, target, kMiB);
  transfer.id = rig.next_id();
  rig.mover->start(transfer);
  for (int turn = 0; turn < 3; ++turn) must(rig.ring->run_once(std::chrono::milliseconds(10)));
  EXPECT_TRUE(rig.mover->take_transfers().empty());
  // What does not need the device goes on.
  const auto beside = rig.place(kMemory, kMiB);
  auto other = copy(source, beside, kMiB);
  other.id = rig.next_id();
  rig.mover->start(other);
  std::vector<mover::TransferDone> done;
  ASSERT_TRUE(eventually(rig, [&] {
    for (auto& each : rig.mover->take_transfers()) done.push_back(each);
    return !done.empty();
  }));
  EXPECT_EQ(done.front().id, other.id);
  control.hold = 0;
  ASSERT_EQ(rig.settle().count(transfer.id), 1U);
  EXPECT_TRUE(equal(rig.bytes(source, kMiB), rig.content(target, kMiB)));
}

// Bytes that come from a disk to a GPU are checked where nobody else can write, and those that go there are summed so.
TEST_F(CudaMover, BlockAndDeviceMeetInTheDaemonsOwnPinnedMemory) {
  Rig rig;
  constexpr std::uint64_t kBytes = 6 * kMiB + 777;
  const auto source = rig.place(kDevice, kBytes);
  const auto expected = rig.put_random(source, kBytes);
  const auto home = rig.place(kBlock, kBytes);
  const auto target = rig.place(kDevice, kBytes);
  ASSERT_TRUE(rig.run(copy(source, home, kBytes)).result);
  ASSERT_TRUE(rig.run(copy(home, target, kBytes)).result);
  EXPECT_TRUE(equal(expected, rig.content(target, kBytes)));
  // A wrong version is not handed on, and is the block tier's fault.
  auto stale = copy(home, target, kBytes);
  stale.version = 4;
  const auto done = rig.run(stale);
  ASSERT_FALSE(done.result);
  EXPECT_EQ(done.result.error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(done.failed, kBlock);
  EXPECT_TRUE(equal(expected, rig.content(target, kBytes)));
}

TEST_F(CudaMover, ACopyThatFailsFailsItsTransferAndNamesTheDevice) {
  Rig rig;
  const auto source = pinned_source(rig, kMiB);
  const auto target = rig.place(kDevice, kMiB);
  const auto home = rig.place(kBlock, kMiB);
  ASSERT_TRUE(rig.run(copy(source, target, kMiB)).result);
  set(control.copies, cuda::kOperatingSystem);  // taken, and failed on the way
  auto done = rig.run(copy(target, source, kMiB));
  ASSERT_FALSE(done.result);
  EXPECT_EQ(done.result.error().message, "cuEventSynchronize: CUDA_ERROR_OPERATING_SYSTEM (304)");
  EXPECT_EQ(done.failed, kDevice);
  set_fault(control, Call::kCopyDown, cuda::kInvalidValue);  // refused
  done = rig.run(copy(target, home, kMiB));
  ASSERT_FALSE(done.result);
  EXPECT_EQ(done.result.error().message, "cuMemcpyDtoHAsync: CUDA_ERROR_INVALID_VALUE (1)");
  EXPECT_EQ(done.failed, kDevice);
  set_fault(control, Call::kEventRecord, cuda::kInvalidHandle);  // no event: still nothing is left running
  done = rig.run(copy(source, target, kMiB));
  ASSERT_FALSE(done.result);
  EXPECT_TRUE(rig.run(copy(source, target, kMiB)).result);
  EXPECT_TRUE(rig.run(copy(target, home, kMiB)).result);
}

TEST_F(CudaMover, ALostDeviceFailsItsTransfersAndTheOthersGoOn) {
  Rig rig;
  const auto source = pinned_source(rig, 2 * kMiB);
  const auto target = rig.place(kDevice, 2 * kMiB);
  const auto home = rig.place(kBlock, 2 * kMiB);
  control.hold = 1;
  auto transfer = copy(source, target, 2 * kMiB);
  transfer.id = rig.next_id();
  rig.mover->start(transfer);
  control.lost[0] = cuda::kEccUncorrectable;  // while the copy runs
  auto done = rig.settle().at(transfer.id);
  control.hold = 0;
  ASSERT_FALSE(done.result);
  EXPECT_EQ(done.result.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(done.result.error().message.find("cuda:0 (Fake GPU 0) is lost: "), std::string::npos);
  EXPECT_EQ(done.failed, kDevice);
  const auto asked = copies();
  for (const auto& each : {copy(target, home, 2 * kMiB), copy(target, source, 2 * kMiB)}) {
    done = rig.run(each);
    ASSERT_FALSE(done.result);
    EXPECT_EQ(done.result.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(done.failed, kDevice);
  }
  EXPECT_EQ(copies(), asked) << "a lost device was asked for more";
  const auto back = rig.place(kMemory, 2 * kMiB);
  ASSERT_TRUE(rig.run(copy(source, home, 2 * kMiB)).result);
  ASSERT_TRUE(rig.run(copy(home, back, 2 * kMiB)).result);
  EXPECT_TRUE(equal(rig.bytes(source, 2 * kMiB), rig.bytes(back, 2 * kMiB)));
}

TEST_F(CudaMover, WithoutPinnedMemoryOfItsOwnItBeginsWithoutTheGpu) {
  Rig rig;
  rig.mover.reset();
  rig.ring = must(mover::Ring::create({}));
  set_fault(control, Call::kHostRegister, cuda::kOutOfMemory);
  EXPECT_TRUE(mover::Mover::create(*rig.ring, *rig.workers,
                                   {.mapped = {&rig.device, &rig.memory, nullptr}, .block = rig.block.get()}, {}));
  const auto why = rig.device.failure();
  ASSERT_TRUE(why);
  EXPECT_NE(why->message.find("cuMemHostRegister: CUDA_ERROR_OUT_OF_MEMORY (2)"), std::string::npos) << why->message;
}

TEST_F(CudaMover, StopsItsStreamsAndThreads) {
  const auto streams = control.streams.load();
  {
    Rig rig;
    EXPECT_GT(control.streams.load(), streams);
  }
  EXPECT_LE(control.streams.load(), streams + 1);  // the default stream of the rig's own copies
}

}  // namespace
}  // namespace terrace::conformance
