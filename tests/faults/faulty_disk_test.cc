// SPDX-License-Identifier: Apache-2.0
// Shows what a disk that fails, hangs or lies costs: nobody a byte, but that a tensor whose bytes are gone says so; and
// that all else is served meanwhile. The disk is a file system of the test's own, behind the kernel's own completions;
// where mounting one is not permitted the tests are skipped by name.
#include "faults/faulty_disk.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <random>

#include "faults/cases.h"

namespace terrace::faults {
namespace {

using namespace std::chrono_literals;
using e2e::eventually;
using e2e::fill;
using e2e::first_difference;
using e2e::kMiB;
using e2e::Terraced;

constexpr std::uint64_t kFaultyTierMib = 64;
constexpr std::uint64_t kFaultyTensors = 6;

class FaultyDisks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!disk_.trouble().empty()) GTEST_SKIP() << disk_.trouble();
    terraced_.emplace(
        e2e::TerracedOptions{.block_mib = kFaultyTierMib, .supervised = true, .block_path = disk_.file()});
    client_.emplace(terraced_->connect());
    std::vector<TensorSpec> specs;
    for (std::uint64_t i = 0; i < kFaultyTensors; ++i)
      specs.push_back({.name = "t" + std::to_string(i), .bytes = kMiB});
    tensors_ = client_->create(specs).value();
    for (const Tensor& tensor : tensors_) write(tensor, 1);
  }
  void TearDown() override {
    disk_.set(Fault::kNone);
    if (terraced_ && HasFailure()) std::printf("%s", terraced_->log().c_str());
    if (terraced_) {
      EXPECT_TRUE(terraced_->serves_on());
    }
  }

  void write(const Tensor& tensor, std::uint64_t version) {
    const Result<Lease> lease = client_->acquire(tensor, {.mode = Mode::kOverwrite});
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    fill(lease->writable_bytes(), tensor.handle(), version);
  }
  void expect_content(const Tensor& tensor, std::uint64_t version) {
    const Result<Lease> lease = client_->acquire(tensor);
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    EXPECT_EQ(first_difference(lease->bytes(), tensor.handle(), version), kMiB) << tensor.name();
  }
  // None can be written down, from this one on; all that is in memory stays.
  void expect_no_write(std::size_t first = 0) {
    for (std::size_t i = first; i < kFaultyTensors; ++i) {
      const Result<void> out = client_->swap_out({&tensors_[i], 1});
      ASSERT_FALSE(out.has_value());
      EXPECT_TRUE(out.error().code == ErrorCode::kInternal || out.error().code == ErrorCode::kUnavailable)
          << out.error().message;
      EXPECT_NE(out.error().message.find(tensors_[i].name()), std::string::npos) << out.error().message;
    }
    for (std::size_t i = first; i < kFaultyTensors; ++i) expect_content(tensors_[i], 1);
  }
  // The code of the error with which a read fails.
  ErrorCode failure_of(const Tensor& tensor) {
    const Result<Lease> lease = client_->acquire(tensor);
    EXPECT_FALSE(lease.has_value()) << tensor.name();
    if (lease) return ErrorCode::kCancelled;
    EXPECT_NE(lease.error().message.find(tensor.name()), std::string::npos) << lease.error().message;
    return lease.error().code;
  }

  // Through the daemon, and without the disk.
  void expect_moves(const Tensor& tensor) {
    for (const Place place : {Place::device(0), Place::host()}) {
      const Result<Lease> lease = client_->acquire(tensor, {.place = place});
      ASSERT_TRUE(lease.has_value()) << lease.error().message;
      EXPECT_EQ(first_difference(lease->bytes(), tensor.handle(), 1), kMiB) << tensor.name();
    }
  }
  // What was being read, what lies on the disk, and what is to go there; the last stays at hand.
  void expect_waits_for_the_disk() {
    for (const Tensor& tensor : std::span(tensors_).first(2)) {
      const Result<Lease> late = client_->acquire(tensor, {.timeout = 300ms});
      ASSERT_FALSE(late.has_value());
      EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded) << late.error().message;
      EXPECT_NE(late.error().message.find("former daemon"), std::string::npos) << late.error().message;
    }
    const Result<void> out = client_->swap_out({&tensors_[5], 1}, Place::block(), 300ms);
    ASSERT_FALSE(out.has_value());
    EXPECT_EQ(out.error().code, ErrorCode::kDeadlineExceeded) << out.error().message;
    expect_content(tensors_[5], 1);
  }
  // Tensors of content 7, until memory has no room for another.
  std::vector<Tensor> fill_memory() {
    std::vector<Tensor> fresh;
    for (std::uint64_t i = 0; i < kFaultyTierMib / 2; ++i) {
      const Tensor tensor = client_->create({.name = "fresh" + std::to_string(i), .bytes = kMiB}).value();
      const Result<Lease> lease = client_->acquire(tensor, {.mode = Mode::kOverwrite, .timeout = 300ms});
      if (!lease) return fresh;
      fill(lease->writable_bytes(), tensor.handle(), 7);
      fresh.push_back(tensor);
    }
    ADD_FAILURE() << "memory has no end";
    return fresh;
  }

  FaultyDisk disk_{(kFaultyTierMib + 8) * kMiB};
  std::optional<Terraced> terraced_;
  std::optional<Client> client_;
  std::vector<Tensor> tensors_;
};

TEST_F(FaultyDisks, ReadErrorsLoseThatTensorAloneAndRetireItsRegion) {
  ASSERT_TRUE(client_->swap_out(tensors_).has_value());
  disk_.set(Fault::kReadFailsOnce);
  expect_content(tensors_[0], 1);
  EXPECT_EQ(disk_.injected(), 1u) << "read once more, and nobody noticed";
  EXPECT_EQ(count_of(block_tier(*terraced_), "io_errors"), 0u);
  ASSERT_TRUE(client_->swap_out(tensors_).has_value());
  disk_.set(Fault::kReadFails);
  constexpr std::size_t kHarmed = 2;
  for (std::size_t i = 0; i < kHarmed; ++i) EXPECT_EQ(failure_of(tensors_[i]), ErrorCode::kDataLoss);
  disk_.set(Fault::kNone);
  const nlohmann::json tier = block_tier(*terraced_);
  EXPECT_EQ(count_of(tier, "io_errors"), kHarmed) << tier;
  EXPECT_EQ(count_of(tier, "checksum_failures"), 0u) << tier;
  EXPECT_GT(count_of(tier, "retired_bytes"), 0u) << tier;
  for (std::size_t i = kHarmed; i < kFaultyTensors; ++i) expect_content(tensors_[i], 1);
  for (std::size_t i = 0; i < kHarmed; ++i) {
    EXPECT_EQ(failure_of(tensors_[i]), ErrorCode::kDataLoss) << "until it is written again";
    write(tensors_[i], 2);
  }
  ASSERT_TRUE(client_->swap_out(tensors_).has_value());
  for (std::size_t i = 0; i < kFaultyTensors; ++i) expect_content(tensors_[i], i < kHarmed ? 2 : 1);
  figure(24, "one EIO was read over; " + std::to_string(kHarmed) + " tensors whose reads failed twice: DATA_LOSS, " +
                 std::to_string(count_of(tier, "retired_bytes") / kMiB) + " MiB retired, the others whole");
}

TEST_F(FaultyDisks, WriteErrorsKeepTheSource) {
  disk_.set(Fault::kWriteFails);
  expect_no_write();
  const nlohmann::json tier = block_tier(*terraced_);
  EXPECT_GE(count_of(tier, "io_errors"), 3u) << tier;
  EXPECT_NE(tier["write_failure"], "") << "three places failed, and none works: " << tier;
  disk_.set(Fault::kNone);
  EXPECT_TRUE(is_whole_again(*terraced_)) << block_tier(*terraced_);
  ASSERT_TRUE(client_->swap_out(tensors_).has_value());
  for (const Tensor& tensor : tensors_) expect_content(tensor, 1);
  figure(25, std::to_string(kFaultyTensors) + " writes were refused, " + std::to_string(count_of(tier, "io_errors")) +
                 " of them by EIO: every source kept, and the whole capacity once the disk worked again");
}

TEST_F(FaultyDisks, ThatAreReadOnlyForATimeCostNothing) {
  disk_.set(Fault::kReadOnly);
  expect_no_write();
  EXPECT_NE(terraced_->log().find("nothing is written to block for now"), std::string::npos);
  ASSERT_TRUE(terraced_->replace(SIGKILL));
  expect_no_write();
  disk_.set(Fault::kNone);
  EXPECT_TRUE(is_whole_again(*terraced_)) << block_tier(*terraced_);
  ASSERT_TRUE(client_->swap_out(tensors_).has_value());
  for (const Tensor& tensor : tensors_) expect_content(tensor, 1);
}

// As a volume that was unplugged: what lies on it is not given up.
TEST_F(FaultyDisks, ThatAreGoneForATimeLoseNothing) {
  const std::span below = std::span(tensors_).first(2);
  ASSERT_TRUE(client_->swap_out(below).has_value());
  disk_.set(Fault::kGone);
  expect_no_write(2);
  for (const Tensor& tensor : below) EXPECT_NE(failure_of(tensor), ErrorCode::kDataLoss);
  Client other = terraced_->connect();
  const Tensor fresh = other.create({.name = "fresh", .bytes = kMiB}).value();
  {
    const Result<Lease> lease = other.acquire(fresh, {.mode = Mode::kOverwrite});
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    fill(lease->writable_bytes(), fresh.handle(), 3);
  }
  disk_.set(Fault::kNone);
  EXPECT_TRUE(is_whole_again(*terraced_)) << block_tier(*terraced_);
  ASSERT_TRUE(client_->swap_out(tensors_).has_value());
  for (const Tensor& tensor : tensors_) expect_content(tensor, 1);
  ASSERT_TRUE(other.swap_out({&fresh, 1}).has_value());
}

TEST_F(FaultyDisks, LiesAreFoundOutEveryOne) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::uint64_t lies = 0;
  std::uint64_t found = 0;
  const std::uint64_t rounds = times(8, 2000);
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    for (const Fault fault : {Fault::kWriteLost, Fault::kWriteTorn, Fault::kWriteMisdirected, Fault::kBitFlipped}) {
      const Tensor& tensor = tensors_[random() % kFaultyTensors];
      const std::uint64_t version = 2 * round + 2;
      write(tensor, version);
      disk_.set(fault);
      const std::uint64_t before = disk_.injected();
      ASSERT_TRUE(client_->swap_out({&tensor, 1}).has_value());
      disk_.set(Fault::kNone);
      ASSERT_GT(disk_.injected(), before);
      ++lies;
      if (failure_of(tensor) == ErrorCode::kDataLoss) ++found;
      for (const Tensor& each : tensors_) write(each, version + 1);  // a misdirected one may have hit a neighbour
    }
  }
  EXPECT_EQ(found, lies);
  EXPECT_EQ(count_of(block_tier(*terraced_), "retired_bytes"), 0u);
  figure(26, std::to_string(found) + " of " + std::to_string(lies) +
                 " lost, torn, misdirected and flipped writes found out");
}

TEST_F(FaultyDisks, ARegionThatKeepsNothingIsRetiredOnceItWasTried) {
  const Tensor& harmed = tensors_[0];
  write(harmed, 2);
  disk_.set(Fault::kWriteLost);
  ASSERT_TRUE(client_->swap_out({&harmed, 1}).has_value());
  EXPECT_EQ(failure_of(harmed), ErrorCode::kDataLoss);
  EXPECT_TRUE(eventually([&] { return count_of(block_tier(*terraced_), "retired_bytes") > 0; }))
      << block_tier(*terraced_);
  disk_.set(Fault::kNone);
  EXPECT_EQ(count_of(block_tier(*terraced_), "io_errors"), 1u) << "the proof";
  write(harmed, 3);
  ASSERT_TRUE(client_->swap_out(tensors_).has_value());
  expect_content(harmed, 3);
  for (std::size_t i = 1; i < kFaultyTensors; ++i) expect_content(tensors_[i], 1);
}

TEST_F(FaultyDisks, AHangHoldsUpWhoNeedsTheDiskAndNobodyElse) {
  const Tensor& away = tensors_[0];
  ASSERT_TRUE(client_->swap_out({&away, 1}).has_value());
  disk_.set(Fault::kHangs);
  const Result<Lease> late = client_->acquire(away, {.timeout = 300ms});
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded) << late.error().message;
  EXPECT_TRUE(eventually([&] { return disk_.injected() > 0; }));
  std::uint64_t served = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(times(1, 30));
  while (std::chrono::steady_clock::now() < end && !HasFailure()) {
    const Place place = ++served % 2 == 0 ? Place::host() : Place::device(0);
    const Result<Lease> lease = client_->acquire(tensors_[1], {.place = place, .mode = Mode::kWrite});
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
  }
  EXPECT_TRUE(terraced_->connect().mark_step().has_value());
  disk_.set(Fault::kNone);
  for (const Tensor& tensor : tensors_) expect_content(tensor, 1);
  figure(28, "the disk hung for " + std::to_string(times(1, 30)) + " s: " + std::to_string(served) +
                 " moves between memory and device meanwhile, every byte right afterwards");
}

// Twice: what a daemon was reading when it was killed may land after its successor's death too.
TEST_F(FaultyDisks, ADaemonKilledWhileTheDiskHangsIsReplacedAtOnceWithoutTheDisk) {
  const std::span all(tensors_);
  ASSERT_TRUE(client_->swap_out(all.first(2)).has_value());
  disk_.set(Fault::kHangs);
  Pending<void> in = client_->swap_in_async(all.first(1), Place::host());
  Pending<void> out = client_->swap_out_async(all.subspan(2, 2));
  ASSERT_TRUE(eventually([&] { return disk_.injected() >= 3; }));
  ASSERT_TRUE(terraced_->replace(SIGKILL));
  const auto killed = std::chrono::steady_clock::now();
  expect_moves(tensors_[4]);
  const double served_ms = milliseconds_since(killed);
  expect_waits_for_the_disk();
  EXPECT_TRUE(terraced_->connect().mark_step().has_value());
  std::vector<Tensor> fresh = fill_memory();
  ASSERT_GT(fresh.size(), 4u);
  ASSERT_TRUE(terraced_->replace(SIGKILL));
  const Result<void> gone = client_->destroy(std::span(fresh).last(2));
  ASSERT_TRUE(gone.has_value()) << gone.error().message;
  fresh.resize(fresh.size() - 2);
  expect_moves(tensors_[4]);
  expect_waits_for_the_disk();
  EXPECT_NE(block_tier(*terraced_)["failure"].get<std::string>().find("former daemon"), std::string::npos);
  disk_.set(Fault::kNone);
  EXPECT_TRUE(eventually([&] { return block_tier(*terraced_)["failure"] == ""; })) << block_tier(*terraced_);
  for (const Tensor& tensor : fresh) expect_content(tensor, 7);
  const Result<void> is_out = out.wait(60s);
  EXPECT_TRUE(is_out.has_value()) << is_out.error().message;
  const Result<void> is_in = in.wait(60s);
  EXPECT_TRUE(is_in.has_value()) << is_in.error().message;
  for (const Tensor& tensor : tensors_) expect_content(tensor, 1);
  EXPECT_EQ(client_->reconnects(), 2u);
  figure(31, "killed while the disk hung, the daemon's successor moved a tensor between memory and device after " +
                 std::to_string(static_cast<int>(served_ms)) + " ms, and " + std::to_string(fresh.size()) +
                 " MiB were written before the disk was back; every byte right afterwards");
}

}  // namespace
}  // namespace terrace::faults
