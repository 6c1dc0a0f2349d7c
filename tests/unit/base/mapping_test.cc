// SPDX-License-Identifier: Apache-2.0
// Shows that pieces map side by side into one range, that no core file has them, and that a sealed memfd can neither
// shrink nor grow.
#include "base/mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "base/bytes.h"

namespace terrace {
namespace {

// Whether the kernel dumps the mapping that begins at `address` (proc_pid_smaps(5), VmFlags; dd: do not).
bool is_dumped(const std::byte* address) {
  std::ostringstream begin;
  begin << std::hex << reinterpret_cast<std::uintptr_t>(address) << '-';
  std::ifstream lines("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(begin.str())) here = true;
    if (here && line.starts_with("VmFlags:")) return (line + " ").find(" dd ") == std::string::npos;
  }
  ADD_FAILURE() << "no mapping begins at " << begin.str();
  return true;
}

TEST(Mapping, PiecesLieSideBySide) {
  auto range = AddressRange::reserve(4 * kMiB);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(range->data()) % (2 * kMiB), 0u);
  const auto first = sealed_memfd("first", kMiB);
  const auto second = sealed_memfd("second", kMiB);
  ASSERT_TRUE(first.has_value() && second.has_value());
  ASSERT_TRUE(range->place(0, kMiB, first->get(), PROT_READ | PROT_WRITE));
  ASSERT_TRUE(range->place(kMiB, kMiB, second->get(), PROT_READ | PROT_WRITE));
  std::memset(range->data() + kMiB - 100, 7, 200);

  const auto alone = AddressRange::map(second->get(), kMiB, PROT_READ);
  ASSERT_TRUE(alone.has_value());
  EXPECT_EQ(alone->data()[99], std::byte{7});
  EXPECT_EQ(alone->data()[100], std::byte{0}) << "fresh memory reads as zeros";
  EXPECT_TRUE(range->clear(0, kMiB));
}

TEST(Mapping, IsInNoCoreFile) {
  const auto memory = sealed_memfd("kept-out", kMiB);
  ASSERT_TRUE(memory.has_value());
  const auto alone = AddressRange::map(memory->get(), kMiB, PROT_READ | PROT_WRITE);
  auto range = AddressRange::reserve(4 * kMiB);
  ASSERT_TRUE(alone.has_value() && range.has_value());
  EXPECT_FALSE(is_dumped(alone->data()));
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(range->place(kMiB, kMiB, memory->get(), PROT_READ | PROT_WRITE));
    EXPECT_FALSE(is_dumped(range->data() + kMiB));
    ASSERT_TRUE(range->clear(kMiB, kMiB));
  }
  void* other = mmap(nullptr, kMiB, PROT_READ, MAP_SHARED, memory->get(), 0);
  ASSERT_NE(other, MAP_FAILED);
  EXPECT_TRUE(is_dumped(static_cast<const std::byte*>(other))) << "what nobody keeps out is dumped";
  munmap(other, kMiB);
}

TEST(Mapping, SealedMemfdKeepsItsSize) {
  const auto fd = sealed_memfd("sealed", kMiB);
  ASSERT_TRUE(fd.has_value());
  EXPECT_NE(ftruncate(fd->get(), 0), 0);
  EXPECT_NE(ftruncate(fd->get(), 2 * kMiB), 0);
  EXPECT_NE(fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  struct stat status{};
  ASSERT_EQ(fstat(fd->get(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
}

}  // namespace
}  // namespace terrace
