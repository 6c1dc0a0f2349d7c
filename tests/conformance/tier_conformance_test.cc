// SPDX-License-Identifier: Apache-2.0
// Shows that every kind of tier keeps one contract through the mover: what goes in comes out, whatever its size and
// whatever else is under way, and zeros are zeros.
#include <algorithm>
#include <numeric>

#include "conformance/rig.h"

namespace terrace::conformance {
namespace {

struct Device {
  static constexpr TierId kTier = kDevice;
  static constexpr const char* kName = "Device";
};
struct Memory {
  static constexpr TierId kTier = kMemory;
  static constexpr const char* kName = "Memory";
};
struct Block {
  static constexpr TierId kTier = kBlock;
  static constexpr const char* kName = "Block";
};
struct Names {
  template <typename Subject>
  static std::string GetName(int /*index*/) {  // NOLINT(readability-identifier-naming): GoogleTest's
    return Subject::kName;
  }
};

template <typename Subject>
class TierConformance : public testing::Test {
 protected:
  static constexpr TierId kTier = Subject::kTier;

  static mover::Transfer copy(const tier::Location& from, const tier::Location& to, std::uint64_t bytes) {
    return {.tensor = 11, .version = 3, .bytes = bytes, .from = from, .to = to};
  }
};
using Subjects = testing::Types<Device, Memory, Block>;
TYPED_TEST_SUITE(TierConformance, Subjects, Names);

TYPED_TEST(TierConformance, GivesBackWhatItGotInEverySize) {
  Rig rig({.mapped_bytes = 128 * kMiB});
  const std::vector<std::uint64_t> sizes = {1,        511,          512,          4095,      4096,
                                            4097,     64 * kKiB,    65 * kKiB,    kMiB - 1,  kMiB,
                                            kMiB + 1, 2 * kMiB + 7, 3 * kMiB - 1, 5'000'000, 9 * kMiB};
  for (const std::uint64_t size : sizes) {
    SCOPED_TRACE(size);
    const auto source = rig.random_source(size);
    const auto subject = rig.place(this->kTier, size);
    const auto target = rig.place(kMemory, size);
    const auto in = rig.run(this->copy(source, subject, size));
    ASSERT_TRUE(in.result) << in.result.error().message;
    const auto out = rig.run(this->copy(subject, target, size));
    ASSERT_TRUE(out.result) << out.result.error().message;
    EXPECT_TRUE(equal(rig.bytes(source, size), rig.bytes(target, size)));
  }
}

// The same with the device at the other end: device and block talk to each other directly.
TYPED_TEST(TierConformance, TalksToTheDevice) {
  Rig rig;
  constexpr std::uint64_t kBytes = 3 * kMiB + 123;
  const auto source = rig.place(kDevice, kBytes);
  const auto expected = rig.put_random(source, kBytes);
  const auto subject = rig.place(this->kTier, kBytes);
  const auto target = rig.place(kDevice, kBytes);
  ASSERT_TRUE(rig.run(this->copy(source, subject, kBytes)).result);
  ASSERT_TRUE(rig.run(this->copy(subject, target, kBytes)).result);
  EXPECT_TRUE(equal(expected, rig.content(target, kBytes)));
}

TYPED_TEST(TierConformance, KeepsManyInFlightApart) {
  Rig rig({.mapped_bytes = 256 * kMiB, .block_bytes = 256 * kMiB});
  const auto seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  rig.random.seed(seed);
  constexpr std::size_t kTensors = 150;
  struct Tensor {
    std::uint64_t bytes = 0;
    tier::Location source;
    tier::Location subject;
    tier::Location target;
  };
  std::vector<Tensor> tensors(kTensors);
  for (Tensor& tensor : tensors) {
    // Mostly small, some of several chunks.
    tensor.bytes = 1 + (rig.random() % 4 == 0 ? rig.random() % (2 * kMiB) : rig.random() % (100 * kKiB));
    tensor.source = rig.random_source(tensor.bytes);
    tensor.subject = rig.place(this->kTier, tensor.bytes);
    tensor.target = rig.place(kMemory, tensor.bytes);
  }
  std::vector<std::size_t> order(kTensors);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const bool in : {true, false}) {
    std::shuffle(order.begin(), order.end(), rig.random);
    for (const std::size_t index : order) {
      const Tensor& tensor = tensors[index];
      auto transfer = in ? this->copy(tensor.source, tensor.subject, tensor.bytes)
                         : this->copy(tensor.subject, tensor.target, tensor.bytes);
      transfer.id = rig.next_id();
      transfer.tensor = index + 1;
      transfer.urgency = static_cast<mover::Class>(rig.random() % mover::kClasses);
      rig.mover->start(transfer);
    }
    const auto done = rig.settle();
    ASSERT_EQ(done.size(), kTensors);
    for (const auto& [id, each] : done) ASSERT_TRUE(each.result) << each.result.error().message;
  }
  for (const Tensor& tensor : tensors) {
    EXPECT_TRUE(equal(rig.bytes(tensor.source, tensor.bytes), rig.bytes(tensor.target, tensor.bytes)));
  }
}

TYPED_TEST(TierConformance, ZeroFills) {
  Rig rig;
  constexpr std::uint64_t kBytes = 2 * kMiB + 5;
  const auto source = rig.random_source(kBytes);
  const auto subject = rig.place(this->kTier, kBytes);
  ASSERT_TRUE(rig.run(this->copy(source, subject, kBytes)).result);
  ASSERT_TRUE(
      rig.run({.zero_fill = true, .tensor = 12, .version = 1, .bytes = kBytes, .from = {}, .to = subject}).result);
  auto back = this->copy(subject, source, kBytes);
  back.tensor = 12;
  back.version = 1;
  ASSERT_TRUE(rig.run(back).result);
  EXPECT_TRUE(all_zeros(rig.bytes(source, kBytes)));
}

TYPED_TEST(TierConformance, TakesTensorsWithoutBytes) {
  Rig rig;
  const auto source = rig.place(kMemory, 0);
  const auto subject = rig.place(this->kTier, 0);
  EXPECT_TRUE(rig.run(this->copy(source, subject, 0)).result);
  EXPECT_TRUE(rig.run(this->copy(subject, source, 0)).result);
}

TYPED_TEST(TierConformance, WaitsForWhatIsInFlightWhenItStops) {
  Rig rig;
  constexpr std::uint64_t kBytes = 9 * kMiB;
  const auto source = rig.random_source(kBytes);
  auto transfer = this->copy(source, rig.place(this->kTier, kBytes), kBytes);
  transfer.id = rig.next_id();
  rig.mover->start(transfer);
  EXPECT_EQ(rig.mover->in_flight(), 1U);
  rig.mover.reset();
  EXPECT_EQ(rig.ring->io_in_flight(), 0U);
}

template <typename Subject>
class MappedConformance : public TierConformance<Subject> {};
using MappedSubjects = testing::Types<Device, Memory>;
TYPED_TEST_SUITE(MappedConformance, MappedSubjects, Names);

TYPED_TEST(MappedConformance, FreshMemoryReadsAsZeros) {
  Rig rig;
  using Kind = mover::SegmentOrder::Kind;
  // Twice: what a session wrote is not in the memory that comes after it.
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(rig.order(Kind::kAdd, this->kTier, {0, kSegmentBytes}));
    EXPECT_TRUE(all_zeros(rig.content(rig.segment(this->kTier), kSegmentBytes)));
    rig.put_random(rig.segment(this->kTier), kSegmentBytes);
    ASSERT_TRUE(rig.order(Kind::kRemove, this->kTier, {0, kSegmentBytes}));
  }
}

TYPED_TEST(MappedConformance, SegmentsComeAndGoAndAddressesStay) {
  Rig rig;
  using Kind = mover::SegmentOrder::Kind;
  tier::MappedTier& tier = rig.mapped(this->kTier);
  ASSERT_TRUE(rig.order(Kind::kAdd, this->kTier, {0, kSegmentBytes}));
  std::byte* const base = tier.address(kSession, 0);
  const auto expected = rig.put_random(rig.segment(this->kTier), kSegmentBytes);
  ASSERT_TRUE(rig.order(Kind::kAdd, this->kTier, {kSegmentBytes, kSegmentBytes}));
  EXPECT_EQ(tier.address(kSession, 0), base);
  EXPECT_EQ(tier.address(kSession, kSegmentBytes), base + kSegmentBytes);
  EXPECT_NE(tier.descriptor(kSession, 0), tier.descriptor(kSession, kSegmentBytes));
  ASSERT_TRUE(rig.order(Kind::kRemove, this->kTier, {kSegmentBytes, kSegmentBytes}));
  EXPECT_EQ(tier.address(kSession, 0), base);
  EXPECT_TRUE(equal(expected, rig.content(rig.segment(this->kTier), kSegmentBytes)));
  const auto missing = rig.order(Kind::kRemove, this->kTier, {kSegmentBytes, kSegmentBytes});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
}

TYPED_TEST(MappedConformance, ATensorMayStraddleSegments) {
  Rig rig;
  rig.place(this->kTier, kSegmentBytes - kMiB);
  const auto subject = rig.place(this->kTier, 2 * kMiB);
  const auto source = rig.random_source(2 * kMiB);
  ASSERT_TRUE(rig.run(this->copy(source, subject, 2 * kMiB)).result);
  EXPECT_TRUE(equal(rig.bytes(source, 2 * kMiB), rig.content(subject, 2 * kMiB)));
}

// Where memory is in a seam it is a tensor like another, on every way.
TYPED_TEST(MappedConformance, PagesThatLieApartAreOneTensor) {
  Rig rig;
  tier::MappedTier& tier = rig.mapped(this->kTier);
  if (!tier.stitches()) GTEST_SKIP() << "this memory cannot be stitched";
  const auto space = rig.place(this->kTier, kSegmentBytes + kMiB);
  const std::vector<tier::Extent> pieces{{kSegmentBytes - 8192, 3 * kMiB / 4}, {4096, 5 * kMiB / 4}, {2 * kMiB, 4096}};
  const tier::Extent seam{tier::kSeamsBegin + 4096, 2 * kMiB + 4096};
  rig.mover->start(mover::SegmentOrder{.kind = mover::SegmentOrder::Kind::kStitch,
                                       .session = kSession,
                                       .tier = this->kTier,
                                       .extent = seam,
                                       .pieces = pieces});
  rig.settle();
  ASSERT_TRUE(rig.mover->take_segments().at(0).result);
  auto stitched = space;
  stitched.pieces = tier::Pieces(seam);
  const auto source = rig.random_source(seam.bytes);
  ASSERT_TRUE(rig.run(this->copy(source, stitched, seam.bytes)).result);
  const auto expected = rig.content(source, seam.bytes);
  EXPECT_TRUE(equal(expected, rig.content(stitched, seam.bytes)));
  std::vector<std::byte> gathered;
  for (const tier::Extent& piece : pieces) {
    auto where = space;
    where.pieces = tier::Pieces(piece);
    const auto part = rig.content(where, piece.bytes);
    gathered.insert(gathered.end(), part.begin(), part.end());
  }
  EXPECT_TRUE(equal(expected, gathered));
  const auto home = rig.place(kBlock, seam.bytes);
  ASSERT_TRUE(rig.run(this->copy(stitched, home, seam.bytes)).result);
  rig.put_random(stitched, seam.bytes);
  ASSERT_TRUE(rig.run(this->copy(home, stitched, seam.bytes)).result);
  EXPECT_TRUE(equal(expected, rig.content(stitched, seam.bytes)));
  ASSERT_TRUE(rig.order(mover::SegmentOrder::Kind::kUnstitch, this->kTier, seam));
  auto first = space;
  first.pieces = tier::Pieces(pieces[0]);
  EXPECT_TRUE(equal(std::span(expected).first(pieces[0].bytes), rig.content(first, pieces[0].bytes)))
      << "the pages stay";
}

TYPED_TEST(MappedConformance, MovesWithinItselfThoughTheRangesOverlap) {
  Rig rig;
  constexpr std::uint64_t kBytes = 5 * kMiB + 77;
  const auto span = rig.place(this->kTier, 8 * kMiB);
  const std::uint64_t start = span.pieces[0].offset;
  for (const std::uint64_t shift : {std::uint64_t{4096}, kMiB, 2 * kMiB + 8192}) {
    for (const bool up : {true, false}) {
      SCOPED_TRACE(shift);
      auto from = span;
      auto to = span;
      from.pieces = tier::Pieces({up ? start : start + shift, align_up(kBytes, kPageBytes)});
      to.pieces = tier::Pieces({up ? start + shift : start, align_up(kBytes, kPageBytes)});
      const auto expected = rig.put_random(from, kBytes);
      ASSERT_TRUE(rig.run(this->copy(from, to, kBytes)).result);
      EXPECT_TRUE(equal(expected, rig.content(to, kBytes)));
    }
  }
}

TYPED_TEST(MappedConformance, ASegmentThatDoesNotFitIsAnError) {
  Rig rig({.mapped_bytes = std::uint64_t{1} << 40});
  const auto refused = rig.order(mover::SegmentOrder::Kind::kAdd, this->kTier, {0, std::uint64_t{1} << 40});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
}

TYPED_TEST(MappedConformance, DroppedSessionsLeaveNothing) {
  Rig rig;
  rig.place(this->kTier, kSegmentBytes);
  tier::MappedTier& tier = rig.mapped(this->kTier);
  rig.mover->drop(kSession);
  EXPECT_EQ(rig.mover->in_flight(), 1U);
  EXPECT_TRUE(rig.settle().empty());
  EXPECT_TRUE(rig.mover->take_segments().empty());
  const auto missing = tier.remove(kSession, {0, kSegmentBytes});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  rig.mover->drop(kSession);
  // What is ordered later comes later.
  ASSERT_TRUE(rig.order(mover::SegmentOrder::Kind::kAdd, this->kTier, {0, kSegmentBytes}));
  EXPECT_TRUE(all_zeros(rig.content(rig.segment(this->kTier), kSegmentBytes)));
}

}  // namespace
}  // namespace terrace::conformance
