// SPDX-License-Identifier: Apache-2.0
// Shows what is read of /proc/self/mountinfo, and what is left out.
#include "topology/mounts.h"

#include <gtest/gtest.h>

#include "unit/topology/fake_root.h"

namespace terrace::topology {
namespace {

TEST(Mounts, EachHasItsDeviceWhereItLiesAndWhatItIs) {
  FakeRoot root;
  root.write("/proc/self/mountinfo",
             "22 1 259:7 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p7 rw\n"
             "23 22 0:5 / /my\\040data ro,nosuid - tmpfs tmpfs rw,size=4k\n"
             "not a line of it\n");
  const std::vector<Mount> found = mounts(root.path());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].major, 259u);
  EXPECT_EQ(found[0].minor, 7u);
  EXPECT_EQ(found[0].point, "/");
  EXPECT_TRUE(found[0].is_writable);
  EXPECT_EQ(found[0].file_system, "ext4");
  EXPECT_EQ(found[0].source, "/dev/nvme0n1p7");
  EXPECT_EQ(found[1].point, "/my data");
  EXPECT_FALSE(found[1].is_writable);
}

TEST(Mounts, OfNoProcThereAreNone) { EXPECT_TRUE(mounts(FakeRoot().path()).empty()); }

}  // namespace
}  // namespace terrace::topology
