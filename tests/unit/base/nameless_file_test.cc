// SPDX-License-Identifier: Apache-2.0
// Shows that a nameless file can be written and read, and that its folder stays empty.
#include "base/nameless_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace terrace {
namespace {

TEST(NamelessFile, IsForReadingAndWritingAndLeavesNothing) {
  std::string folder = (std::filesystem::temp_directory_path() / "nameless-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto file = nameless_file(folder);
  ASSERT_TRUE(file);
  EXPECT_EQ(::pwrite(file->get(), "x", 1, 0), 1);
  char read = 0;
  EXPECT_EQ(::pread(file->get(), &read, 1, 0), 1);
  EXPECT_EQ(read, 'x');
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove(folder);
  EXPECT_EQ(nameless_file(folder).error(), ENOENT);
}

}  // namespace
}  // namespace terrace
