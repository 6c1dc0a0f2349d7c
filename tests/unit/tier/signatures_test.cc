// SPDX-License-Identifier: Apache-2.0
// Shows that what may be somebody's is seen by a device's first and last bytes, by name where it is known, and that
// only zeros are nobody's.
#include "tier/block/signatures.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace terrace::tier {
namespace {

using namespace std::string_view_literals;

std::string with(std::size_t offset, std::string_view bytes, bool at_end = false) {
  std::vector<std::byte> first(kMiB);
  std::vector<std::byte> last(kMiB);
  std::memcpy((at_end ? last : first).data() + offset, bytes.data(), bytes.size());
  return what_is_there(first, last);
}

TEST(SignaturesTest, OnlyZerosAreNobodys) {
  EXPECT_EQ(with(0, ""), "");
  EXPECT_EQ(with(700'000, "x"), "something");
  EXPECT_NE(with(kMiB - 1, "x", true).find("at its end"), std::string::npos);
}

TEST(SignaturesTest, AreNamed) {
  EXPECT_EQ(with(1080, "\x53\xef"), "an ext2, ext3 or ext4 file system");
  EXPECT_EQ(with(0, "XFSB"), "an xfs file system");
  EXPECT_EQ(with(65600, "_BHRfS_M"), "a btrfs file system");
  EXPECT_EQ(with(512, "EFI PART"), "a partition table (GPT)");
  EXPECT_EQ(with(510, "\x55\xaa"), "a partition table (MBR)");
  EXPECT_EQ(with(512, "LABELONE"), "an LVM volume");
  EXPECT_EQ(with(0, "LUKS\xba\xbe"), "a LUKS volume");
  EXPECT_EQ(with(4086, "SWAPSPACE2"), "swap space");
}

TEST(SignaturesTest, OfAFileSystemInABootSectorTheFileSystemIsNamed) {
  std::vector<std::byte> first(kMiB);
  std::memcpy(first.data() + 510, "\x55\xaa", 2);
  std::memcpy(first.data() + 3, "NTFS    ", 8);
  EXPECT_EQ(what_is_there(first, {}), "an NTFS file system");
}

}  // namespace
}  // namespace terrace::tier
