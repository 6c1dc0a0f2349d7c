// SPDX-License-Identifier: Apache-2.0
// Shows that pieces map side by side into one range, and that a sealed memfd can neither shrink nor grow.
#include "base/mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "base/bytes.h"

namespace terrace {
namespace {

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
