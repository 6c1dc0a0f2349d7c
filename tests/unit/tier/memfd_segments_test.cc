// SPDX-License-Identifier: Apache-2.0
// Shows what a segment is when it is handed over: sealed, backed, this uid's alone, and gone when it is given up.
#include "tier/memory/memfd_segments.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>

#include "base/bytes.h"
#include "tier/device/emulated_device.h"
#include "tier/memory/memory_tier.h"

namespace terrace::tier {
namespace {

constexpr std::uint64_t kSegment = MemfdSegments::kSegmentUnit;
constexpr SessionId kSession{1};

MemfdOptions options(HugePages pages = HugePages::kNever) {
  return {.capacity_bytes = 64 * kMiB, .numa_node = {}, .huge_pages = pages};
}
std::uint64_t backed_bytes(int fd) {
  struct stat facts{};
  EXPECT_EQ(fstat(fd, &facts), 0);
  return static_cast<std::uint64_t>(facts.st_blocks) * 512;
}

TEST(MemfdSegmentsTest, ASegmentIsSealedBackedAndPrivate) {
  const MemoryTier tier(options());
  const auto segment = tier.create_segment(2 * kSegment);
  ASSERT_TRUE(segment) << segment.error().message;
  const int seals = fcntl(segment->get(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_EQ(ftruncate(segment->get(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  struct stat facts{};
  ASSERT_EQ(fstat(segment->get(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600U);
  EXPECT_EQ(fcntl(segment->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  EXPECT_EQ(backed_bytes(segment->get()), 2 * kSegment);
  EXPECT_EQ(tier.ordinary_bytes(), 2 * kSegment);
}

TEST(MemfdSegmentsTest, KindsTellThemApart) {
  EXPECT_EQ(MemoryTier(options()).kind(), Kind::kMemory);
  EXPECT_EQ(EmulatedDevice(options()).kind(), Kind::kDevice);
}

TEST(MemfdSegmentsTest, HugePagesAreUsedWhereTheyAreAndDemandedIfAsked) {
  const MemoryTier either(options(HugePages::kAuto));
  const auto segment = either.create_segment(kSegment);
  ASSERT_TRUE(segment) << segment.error().message;
  EXPECT_EQ(either.huge_bytes() + either.ordinary_bytes(), kSegment);

  const MemoryTier strict(options(HugePages::k2MiB));
  const auto demanded = strict.create_segment(kSegment);
  if (demanded) {
    EXPECT_EQ(strict.huge_bytes(), kSegment);
  } else {
    EXPECT_EQ(demanded.error().code, ErrorCode::kResourceExhausted);
    EXPECT_NE(demanded.error().message.find("2 MiB pages"), std::string::npos) << demanded.error().message;
    EXPECT_EQ(strict.ordinary_bytes(), 0U);
  }
}

// The policy is the segment's own, so that it holds in every process.
TEST(MemfdSegmentsTest, AreBoundToTheirNodeOrTakenNearItFirst) {
  const auto policy_of = [](const MemfdOptions& wanted) -> std::optional<int> {
    const MemoryTier tier(wanted);
    const auto segment = tier.create_segment(kSegment);
    EXPECT_TRUE(segment) << segment.error().message;
    void* const memory = mmap(nullptr, kSegment, PROT_READ, MAP_SHARED, segment->get(), 0);
    EXPECT_NE(memory, MAP_FAILED);
    int policy = -1;
    const bool said = syscall(SYS_get_mempolicy, &policy, nullptr, 0, memory, MPOL_F_ADDR) == 0;
    munmap(memory, kSegment);
    return said && tier.binding_error() == 0 ? std::optional(policy) : std::nullopt;
  };
  MemfdOptions near = options();
  near.near_node = 0;
  MemfdOptions bound = near;
  bound.numa_node = 0;
  if (!policy_of(bound)) GTEST_SKIP() << "no NUMA policies here";
  EXPECT_EQ(policy_of(bound), MPOL_BIND);
  EXPECT_EQ(policy_of(near), MPOL_PREFERRED);
  EXPECT_EQ(policy_of(options()), MPOL_DEFAULT);
}

// A node that is not there is no node to bind to; node 0 is there on every machine.
TEST(MemfdSegmentsTest, BindsToTheNodesThatThereAre) {
  for (const unsigned node : {0U, 1000U}) {
    auto bound = options();
    bound.numa_node = node;
    const MemoryTier tier(bound);
    const auto segment = tier.create_segment(kSegment);
    EXPECT_TRUE(segment) << segment.error().message;
    const int error = tier.binding_error();
    EXPECT_TRUE(error == 0 || error == EPERM || error == ENOSYS) << error;  // where containers forbid it
  }
}

TEST(MemfdSegmentsTest, TheTrainersMappingIsTheDaemonsMemory) {
  MemoryTier tier(options());
  ASSERT_TRUE(tier.install(kSession, {0, kSegment}, std::move(*tier.create_segment(kSegment))));
  void* theirs = mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, tier.descriptor(kSession, 0), 0);
  ASSERT_NE(theirs, MAP_FAILED);
  *tier.address(kSession, 4096) = std::byte{42};
  EXPECT_EQ(static_cast<std::byte*>(theirs)[4096], std::byte{42});
  munmap(theirs, kSegment);
}

// Of the calling thread, while the kernel writes to each page of the session's first segment for it. (What it writes
// itself has shadows that fault as well, where a sanitizer watches; so has read(2) by its name.)
std::int64_t faults_of_writing(MemoryTier& tier) {
  const auto faults = [] {
    rusage usage{};
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
    return std::int64_t{usage.ru_minflt};
  };
  const Fd zeros(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  std::byte* const memory = tier.address(kSession, 0);
  const std::int64_t before = faults();
  EXPECT_EQ(syscall(SYS_read, zeros.get(), memory, kSegment), static_cast<long>(kSegment));
  return faults() - before;
}

TEST(MemfdSegmentsTest, PagesThatWereMappedAreNotLookedForWhenTheyAreFirstUsed) {
  constexpr auto kPages = static_cast<std::int64_t>(kSegment / kPageBytes);
  MemoryTier tier(options());
  ASSERT_TRUE(tier.install(kSession, {0, kSegment}, std::move(*tier.create_segment(kSegment))));
  tier.map_pages(kSession, {0, kSegment});
  EXPECT_LT(faults_of_writing(tier), kPages / 8);
}

TEST(MemfdSegmentsTest, GivingUpPunchesThePagesThoughSomebodyHoldsThem) {
  MemoryTier tier(options());
  auto segment = tier.create_segment(kSegment);
  const Fd held(dup(segment->get()));
  ASSERT_TRUE(tier.install(kSession, {0, kSegment}, std::move(*segment)));
  EXPECT_EQ(backed_bytes(held.get()), kSegment);
  ASSERT_TRUE(tier.remove(kSession, {0, kSegment}));
  EXPECT_EQ(backed_bytes(held.get()), 0U);
}

TEST(MemfdSegmentsTest, DroppingASessionPunchesToo) {
  MemoryTier tier(options());
  auto segment = tier.create_segment(kSegment);
  const Fd held(dup(segment->get()));
  ASSERT_TRUE(tier.install(kSession, {0, kSegment}, std::move(*segment)));
  tier.drop(kSession);
  EXPECT_EQ(backed_bytes(held.get()), 0U);
}

TEST(MemfdSegmentsTest, SessionsHaveSpacesOfTheirOwn) {
  MemoryTier tier(options());
  constexpr SessionId kOther{2};
  ASSERT_TRUE(tier.install(kSession, {0, kSegment}, std::move(*tier.create_segment(kSegment))));
  ASSERT_TRUE(tier.install(kOther, {0, kSegment}, std::move(*tier.create_segment(kSegment))));
  EXPECT_NE(tier.address(kSession, 0), tier.address(kOther, 0));
  *tier.address(kSession, 0) = std::byte{1};
  EXPECT_EQ(*tier.address(kOther, 0), std::byte{0});
  tier.drop(kSession);
  EXPECT_EQ(*tier.address(kOther, 0), std::byte{0});
}

TEST(MemfdSegmentsTest, OneThreadRemovesWhileAnotherAddsAndReads) {
  MemoryTier tier(options());
  ASSERT_TRUE(tier.install(kSession, {0, kSegment}, std::move(*tier.create_segment(kSegment))));
  std::jthread other([&] {
    for (int round = 0; round < 20; ++round) {
      ASSERT_TRUE(tier.install(kSession, {kSegment, kSegment}, std::move(*tier.create_segment(kSegment))));
      ASSERT_TRUE(tier.remove(kSession, {kSegment, kSegment}));
    }
  });
  for (int round = 0; round < 10'000; ++round) {
    std::byte* const address = tier.address(kSession, 0);
    *address = std::byte{9};
    ASSERT_GE(tier.descriptor(kSession, 0), 0);
  }
}

TEST(MemfdSegmentsDeathTest, OnlyWholeUnitsAreSegments) {
  const MemoryTier tier(options());
  EXPECT_DEATH((void)tier.create_segment(kSegment + 4096), "check failed");
}

}  // namespace
}  // namespace terrace::tier
