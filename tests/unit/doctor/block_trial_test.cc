// SPDX-License-Identifier: Apache-2.0
// Shows that a trial finds a drive that fails, lies or hangs, on a file system of the test's own; where mounting one is
// not permitted the tests are skipped by name.
#include "doctor/block_trial.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include "doctor/patience.h"
#include "faults/faulty_disk.h"

namespace terrace::doctor {
namespace {

using faults::Fault;

class BlockTrial : public testing::Test {
 protected:
  void SetUp() override {
    if (!disk_.trouble().empty()) GTEST_SKIP() << disk_.trouble();
    file_ = Fd(::open(disk_.file().c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
    ASSERT_TRUE(file_);
  }
  void TearDown() override { disk_.set(Fault::kNone); }

  std::string said(Fault fault) {
    disk_.set(fault);
    const auto tried = try_block(file_.get());
    return tried ? "" : tried.error().message;
  }

  faults::FaultyDisk disk_{4 * kTrialBytes};
  Fd file_;
};

TEST_F(BlockTrial, AHealthyDrive) { EXPECT_EQ(said(Fault::kNone), ""); }

TEST_F(BlockTrial, ADriveThatFails) {
  EXPECT_THAT(said(Fault::kWriteFails), testing::HasSubstr("writing with O_DIRECT failed: Input/output error"));
  EXPECT_THAT(said(Fault::kReadOnly), testing::HasSubstr("writing with O_DIRECT failed: Read-only file system"));
  EXPECT_THAT(said(Fault::kReadFails), testing::HasSubstr("reading with O_DIRECT failed: Input/output error"));
}

TEST_F(BlockTrial, ADriveThatLies) {
  for (const Fault fault : {Fault::kWriteLost, Fault::kWriteTorn, Fault::kWriteMisdirected, Fault::kBitFlipped})
    EXPECT_THAT(said(fault), testing::HasSubstr("other bytes came back")) << static_cast<int>(fault);
}

TEST_F(BlockTrial, ADriveThatHangs) {
  disk_.set(Fault::kHangs);
  EXPECT_FALSE(ends_within(std::chrono::milliseconds(100), [this] { (void)try_block(file_.get()); }));
  disk_.set(Fault::kNone);
  EXPECT_TRUE(ends_within(std::chrono::minutes(1), [this] { (void)try_block(file_.get()); }));
}

}  // namespace
}  // namespace terrace::doctor
