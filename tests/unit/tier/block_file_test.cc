// SPDX-License-Identifier: Apache-2.0
// Shows that the block tier takes its space for itself, says clearly why it cannot, and knows where each byte lies.
#include "tier/block/block_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "base/bytes.h"
#include "tier/block/probe.h"

namespace terrace::tier {
namespace {

class BlockFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(TERRACE_TEST_FOLDER);
    std::string name = TERRACE_TEST_FOLDER "/block-file-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr) << std::strerror(errno);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "block") const { return folder_ / name; }
  BlockOptions options(std::uint64_t bytes = 4 * kMiB) const { return {.paths = {path()}, .capacity_bytes = bytes}; }
  static void expect_refused(const Result<std::unique_ptr<BlockFile>>& result, ErrorCode code,
                             const std::string& says) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(says), std::string::npos) << result.error().message;
  }

  std::filesystem::path folder_;
};

TEST_F(BlockFileTest, TakesAllItsSpaceAtOnce) {
  const auto file = BlockFile::open(options());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ((*file)->capacity_bytes(), 4 * kMiB);
  EXPECT_EQ((*file)->checksums().size(), checksum_entries(4 * kMiB));
  struct stat facts{};
  ASSERT_EQ(stat(path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600U);
  EXPECT_EQ(facts.st_size, static_cast<off_t>(4 * kMiB));
  EXPECT_GE(static_cast<std::uint64_t>(facts.st_blocks) * 512, 4 * kMiB);
  EXPECT_EQ(kPageBytes % (*file)->alignment(), 0U);
  const int fd = (*file)->descriptors().at(0);
  EXPECT_NE(fcntl(fd, F_GETFL) & O_DIRECT, 0);
  EXPECT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(BlockFileTest, StaysUnlessItIsToGo) {
  {
    const auto file = BlockFile::open(options());
    ASSERT_TRUE(file);
    (*file)->keep();
  }
  EXPECT_TRUE(std::filesystem::exists(path()));
  auto leaving = options(2 * kMiB);
  leaving.remove_on_close = true;
  {
    const auto file = BlockFile::open(leaving);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(std::filesystem::file_size(path()), 4 * kMiB);  // its end may be somebody's until the start has succeeded
    (*file)->keep();
    EXPECT_EQ(std::filesystem::file_size(path()), 2 * kMiB);
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(BlockFileTest, AStartThatComesToNothingLeavesWhatItFound) {
  {
    ASSERT_TRUE(BlockFile::open(options()));
  }
  EXPECT_FALSE(std::filesystem::exists(path())) << "it made this one";
  {
    const auto file = BlockFile::open(options());
    ASSERT_TRUE(file);
    (*file)->keep();
  }
  for (const std::uint64_t bytes : {2 * kMiB, 8 * kMiB}) {
    ASSERT_TRUE(BlockFile::open(options(bytes)));
    EXPECT_EQ(std::filesystem::file_size(path()), 4 * kMiB) << "as the former daemon left it";
  }
}

TEST_F(BlockFileTest, ASecondOwnerIsToldWhoTheFirstIs) {
  const auto first = BlockFile::open(options());
  ASSERT_TRUE(first);
  const auto second = BlockFile::open(options());
  expect_refused(second, ErrorCode::kFailedPrecondition, path());
  expect_refused(second, ErrorCode::kFailedPrecondition, std::to_string(getpid()));
  EXPECT_TRUE(std::filesystem::exists(path()));
}

TEST_F(BlockFileTest, TheLockGoesWithTheOwner) {
  {
    ASSERT_TRUE(BlockFile::open(options()));
  }
  EXPECT_TRUE(BlockFile::open(options()));
}

TEST_F(BlockFileTest, WhatAnotherStillHoldsCanBeWaitedFor) {
  auto former = BlockFile::open(options());
  ASSERT_TRUE(former);
  (*former)->keep();
  BlockOptions waiting = options();
  waiting.may_wait = true;
  {
    const auto in_vain = BlockFile::open(waiting);
    ASSERT_TRUE(in_vain) << in_vain.error().message;
    EXPECT_FALSE((*in_vain)->owned());
  }
  EXPECT_EQ(std::filesystem::file_size(path()), 4 * kMiB) << "it is left as it was";
  const auto file = BlockFile::open(waiting);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ((*file)->identity(), (*former)->identity());
  EXPECT_EQ((*file)->capacity_bytes(), 4 * kMiB);
  const std::vector<int> descriptors = (*file)->descriptors();
  EXPECT_EQ((*file)->take(), false);
  EXPECT_TRUE((*file)->held_by_the_living()) << "by this process";
  EXPECT_NE((*file)->holder().find(std::to_string(getpid())), std::string::npos) << (*file)->holder();
  former->reset();
  EXPECT_FALSE((*file)->owned()) << "until it is taken";
  EXPECT_EQ((*file)->take(), true);
  EXPECT_TRUE((*file)->owned());
  EXPECT_FALSE((*file)->held_by_the_living());
  EXPECT_EQ((*file)->descriptors(), descriptors);
  (*file)->keep();
  EXPECT_FALSE(BlockFile::open(options()));
}

TEST_F(BlockFileTest, AFileThatItsOwnerRemovedIsNotInPlace) {
  BlockOptions removing = options();
  removing.remove_on_close = true;
  auto former = BlockFile::open(removing);
  ASSERT_TRUE(former);
  (*former)->keep();
  removing.may_wait = true;
  auto file = BlockFile::open(removing);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE((*file)->in_place());
  former->reset();
  EXPECT_EQ((*file)->take(), true);
  EXPECT_FALSE((*file)->in_place());
  (*file)->keep();
  std::ofstream(path()) << "another's";
  EXPECT_FALSE((*file)->in_place());
  file->reset();
  EXPECT_TRUE(std::filesystem::exists(path())) << "it removes no file but its own";
}

TEST_F(BlockFileTest, ItIsOwnedOnceEveryFileIs) {
  BlockOptions both = options(8 * kMiB);
  both.paths.push_back(path("second"));
  both.may_wait = true;
  const Fd second(open(both.paths[1].c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(second.get(), LOCK_EX), 0);
  const auto file = BlockFile::open(both);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_FALSE((*file)->owned());
  EXPECT_EQ(std::filesystem::file_size(both.paths[1]), 0u);
  ASSERT_EQ(flock(second.get(), LOCK_UN), 0);
  EXPECT_EQ((*file)->take(), true);
  EXPECT_EQ(std::filesystem::file_size(both.paths[1]), 4 * kMiB);
}

TEST_F(BlockFileTest, AFileThatWillNotDoIsFoundOutWhenItIsTaken) {
  std::ofstream(path()) << "a thesis";
  BlockOptions waiting = options();
  waiting.may_wait = true;
  const Fd holder(open(path().c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(holder.get(), LOCK_EX), 0);
  const auto file = BlockFile::open(waiting);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ((*file)->take(), false);
  ASSERT_EQ(flock(holder.get(), LOCK_UN), 0);
  for (int tries = 0; tries < 2; ++tries) {
    const auto taken = (*file)->take();
    ASSERT_FALSE(taken.has_value());
    EXPECT_EQ(taken.error().code, ErrorCode::kFailedPrecondition) << taken.error().message;
  }
  EXPECT_FALSE((*file)->owned());
  EXPECT_EQ(std::filesystem::file_size(path()), 8u);
}

TEST_F(BlockFileTest, AFullFileSystemIsNamedAndLeftAsItWas) {
  const auto refused = BlockFile::open(options(std::uint64_t{1} << 50));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted) << refused.error().message;
  EXPECT_NE(refused.error().message.find(path()), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("are free"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(refused.error().system_error == ENOSPC || refused.error().system_error == EFBIG);
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(BlockFileTest, OneOfSeveralFailingLeavesNone) {
  auto several = options(8 * kMiB);
  several.paths.push_back(folder_ / "missing" / "block");
  expect_refused(BlockFile::open(several), ErrorCode::kInvalidArgument, "missing");
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(BlockFileTest, OnlyFilesWillDo) {
  std::filesystem::create_directory(path());
  expect_refused(BlockFile::open(options()), ErrorCode::kFailedPrecondition, "not a regular file");
  BlockOptions character{.paths = {"/dev/null"}, .capacity_bytes = kMiB};
  expect_refused(BlockFile::open(character), ErrorCode::kFailedPrecondition, "/dev/null");
}

TEST_F(BlockFileTest, SomebodyElsesFileIsLeftAlone) {
  std::ofstream(path()) << "a thesis";
  expect_refused(BlockFile::open(options()), ErrorCode::kFailedPrecondition, path());
  std::ifstream file(path());
  std::string content;
  std::getline(file, content);
  EXPECT_EQ(content, "a thesis");
}

TEST_F(BlockFileTest, NothingIsNoCapacity) {
  expect_refused(BlockFile::open(options(kMiB - 1)), ErrorCode::kInvalidArgument, "1 MiB");
  expect_refused(BlockFile::open({.paths = {}, .capacity_bytes = kMiB}), ErrorCode::kInvalidArgument, "path");
}

// /proc has files and no direct I/O, on every machine.
TEST_F(BlockFileTest, AFileSystemWithoutDirectIoIsRefused) {
  const BlockOptions options{.paths = {"/proc/self/comm"}, .capacity_bytes = kMiB};
  const auto refused = BlockFile::open(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition) << refused.error().message;
  EXPECT_NE(refused.error().message.find("O_DIRECT"), std::string::npos) << refused.error().message;
}

TEST_F(BlockFileTest, EveryByteHasOnePlace) {
  BlockOptions striped{.paths = {path("a"), path("b"), path("c")}, .capacity_bytes = 10 * kMiB};
  const auto opened = BlockFile::open(striped);
  ASSERT_TRUE(opened) << opened.error().message;
  const BlockFile& file = **opened;
  ASSERT_EQ(file.capacity_bytes(), 9 * kMiB);
  std::set<std::pair<std::size_t, std::uint64_t>> seen;
  for (std::uint64_t at = 0; at < file.capacity_bytes();) {
    const auto piece = file.locate(at, file.capacity_bytes() - at);
    ASSERT_GT(piece.bytes, 0U);
    for (std::uint64_t page = 0; page < piece.bytes; page += kPageBytes) {
      EXPECT_TRUE(seen.emplace(piece.file, piece.offset + page).second);
    }
    EXPECT_LT(piece.file, 3U);
    EXPECT_LE(piece.offset + piece.bytes, 3 * kMiB);
    at += piece.bytes;
  }
  EXPECT_EQ(seen.size(), file.capacity_bytes() / kPageBytes);
  // Within a stripe, and across its end.
  EXPECT_EQ(file.locate(kMiB + kPageBytes, kMiB).bytes, kMiB - kPageBytes);
  EXPECT_EQ(file.locate(kMiB + kPageBytes, kPageBytes).bytes, kPageBytes);
}

TEST_F(BlockFileTest, OneFileIsOneRun) {
  const auto opened = BlockFile::open(options());
  const auto piece = (*opened)->locate(kPageBytes, 3 * kMiB);
  EXPECT_EQ(piece.file, 0U);
  EXPECT_EQ(piece.offset, kPageBytes);
  EXPECT_EQ(piece.bytes, 3 * kMiB);
}

TEST_F(BlockFileTest, TheLocksHolderIsFound) {
  const Fd file(open(path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_FALSE(lock_holder(file.get()));
  ASSERT_EQ(flock(file.get(), LOCK_EX), 0);
  const auto holder = lock_holder(file.get());
  ASSERT_TRUE(holder);
  EXPECT_EQ(holder->pid, getpid());
  EXPECT_FALSE(holder->name.empty());
}

}  // namespace
}  // namespace terrace::tier
