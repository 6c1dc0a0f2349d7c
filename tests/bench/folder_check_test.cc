// SPDX-License-Identifier: Apache-2.0
// Shows that a folder where nothing can be made is told from one that will do, and that looking leaves nothing there.
#include "bench/folder_check.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace terrace::bench {
namespace {

TEST(FolderCheck, AFolderWhereNothingCanBeMadeHoldsNoBlockFile) {
  EXPECT_NE(cannot_hold_block_files("/proc").find("no folder can be made in /proc"), std::string::npos);
  EXPECT_NE(cannot_hold_block_files("/no/such/folder").find("--dir"), std::string::npos);
}

TEST(FolderCheck, LeavesNothingBehind) {
  std::string name = "folder-check-XXXXXX";  // in the build's folder, or where the test runs
  const std::filesystem::path folder = ::mkdtemp(name.data());
  (void)cannot_hold_block_files(folder);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace terrace::bench
