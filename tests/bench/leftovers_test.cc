// SPDX-License-Identifier: Apache-2.0
// Shows which folders go: those of benchmarks that run no more, and of nobody else, whatever numbers processes have.
#include "bench/leftovers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <fstream>
#include <vector>

namespace terrace::bench {
namespace {

class Folders : public testing::Test {
 protected:
  Folders() {
    std::string name = (std::filesystem::temp_directory_path() / "leftovers-XXXXXX").string();
    parent_ = ::mkdtemp(name.data());
  }
  ~Folders() override { std::filesystem::remove_all(parent_); }

  std::filesystem::path left(const std::string& name) const {
    std::filesystem::create_directories(parent_ / name / "block");
    std::ofstream(parent_ / name / "log") << "last words";
    std::filesystem::permissions(parent_ / name, std::filesystem::perms::owner_all);
    return parent_ / name;
  }

  std::filesystem::path parent_;
};

TEST_F(Folders, GoWithTheirObjects) {
  auto first = Folder::make(parent_);
  auto second = Folder::make(parent_);
  ASSERT_TRUE(first.has_value() && second.has_value());
  const auto path = first->path();
  std::ofstream(path / "block") << "bytes";
  *second = std::move(*first);
  EXPECT_EQ(second->path(), path);
  first = Folder{};
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(parent_), {}), 1);
  EXPECT_TRUE(std::filesystem::exists(path));
  second = Folder{};
  EXPECT_TRUE(std::filesystem::is_empty(parent_));
}

TEST_F(Folders, OfOneThatRunsStayAndOfOneThatDoesNotGo) {
  const auto made = Folder::make(parent_);
  ASSERT_TRUE(made.has_value());
  const auto gone = left("terrace-bench-1-abcdef");  // the first process of every container
  const auto foreign = left("something-1-abcdef");
  remove_stale_folders(parent_);
  EXPECT_TRUE(std::filesystem::exists(made->path()));
  EXPECT_FALSE(std::filesystem::exists(gone));
  EXPECT_TRUE(std::filesystem::exists(foreign));
}

TEST_F(Folders, OfOneThatRunsAreInUse) {
  left("terrace-bench-1-abcdef");
  left("something-1-abcdef");
  EXPECT_TRUE(folders_in_use(parent_).empty());
  const auto made = Folder::make(parent_);
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ(folders_in_use(parent_), std::vector{made->path()});
  EXPECT_TRUE(std::filesystem::exists(parent_ / "terrace-bench-1-abcdef")) << "looking takes nothing away";
}

TEST_F(Folders, NotNamedOrMadeAsABenchmarksStay) {
  std::vector<std::filesystem::path> others;
  for (const char* name : {"terrace-bench-results", "terrace-bench-1-abcde", "terrace-bench-1-abcdefg",
                           "terrace-bench--abcdef", "terrace-bench-1a-abcdef", "terrace-bench-1-abcd.f"})
    others.push_back(left(name));
  others.push_back(left("terrace-bench-1-abcdef"));
  std::filesystem::permissions(others.back(), std::filesystem::perms::others_read, std::filesystem::perm_options::add);
  const auto results = left("results");
  std::filesystem::create_directory_symlink(results, parent_ / "terrace-bench-2-abcdef");
  remove_stale_folders(parent_);
  for (const auto& other : others) EXPECT_TRUE(std::filesystem::exists(other / "log")) << other;
  EXPECT_TRUE(std::filesystem::exists(parent_ / "terrace-bench-2-abcdef" / "log"));
}

TEST_F(Folders, OfAnotherContainerStayAsLongAsTheyAreLocked) {
  const auto folder = left("terrace-bench-4194305-abcdef");  // no number that a process here has
  {
    const Fd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
    remove_stale_folders(parent_);
    EXPECT_TRUE(std::filesystem::exists(folder / "log"));
  }
  remove_stale_folders(parent_);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace terrace::bench
