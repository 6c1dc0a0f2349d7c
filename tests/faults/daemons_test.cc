// SPDX-License-Identifier: Apache-2.0
// Shows what a daemon's death costs by its size and its frequency: a full tier comes back whole and as fast as a small
// one, ten deaths in a row are as one, and without a supervisor everything is gone, and nothing of it is ever served.
#include <gtest/gtest.h>
#include <signal.h>

#include "faults/cases.h"

namespace terrace::faults {
namespace {

using e2e::fill;
using e2e::first_difference;
using e2e::kMiB;
using e2e::Terraced;

void kill_daemon(const Terraced& terraced) { ASSERT_TRUE(terraced.replace(SIGKILL)); }

std::vector<Tensor> create_mebibytes(Client& client, std::uint64_t count) {
  std::vector<TensorSpec> specs;
  for (std::uint64_t i = 0; i < count; ++i) specs.push_back({.name = "t" + std::to_string(i), .bytes = kMiB});
  return client.create(specs).value();
}

TEST(FullTier, ComesBackWholeWhateverItsSize) {
  for (const std::uint64_t mebibytes : {times(16, 256), times(128, 4096)}) {
    const Terraced terraced(
        {.device_mib = 0, .memory_mib = mebibytes, .block_mib = mebibytes + 64, .supervised = true});
    const LogOfFailure log(terraced);
    Client client = terraced.connect();
    const std::vector<Tensor> tensors = create_mebibytes(client, mebibytes);
    for (const Tensor& tensor : tensors) {
      const Result<Lease> lease = client.acquire(tensor, {.mode = Mode::kOverwrite});
      ASSERT_TRUE(lease.has_value()) << lease.error().message;
      fill(lease->writable_bytes(), tensor.handle(), 1);
    }
    const std::uint64_t full = used_bytes(terraced.status());
    std::vector<double> away;
    for (int death = 0; death < 5; ++death) {
      const auto killed = std::chrono::steady_clock::now();
      ASSERT_NO_FATAL_FAILURE(kill_daemon(terraced));
      const Result<void> served = client.mark_step();
      ASSERT_TRUE(served.has_value()) << served.error().message;
      away.push_back(milliseconds_since(killed));
    }
    EXPECT_EQ(used_bytes(terraced.status()), full);
    for (const Tensor& tensor : tensors) {
      const Result<Lease> lease = client.acquire(tensor);
      ASSERT_TRUE(lease.has_value()) << lease.error().message;
      ASSERT_EQ(first_difference(lease->bytes(), tensor.handle(), 1), kMiB) << tensor.name();
    }
    EXPECT_EQ(client.reconnects(), 5u);
    figure(6, "with " + std::to_string(mebibytes) + " MiB full of tensors, a request was answered after " +
                  spread(away) + "; every byte right");
  }
}

TEST(TenDeaths, InARowAreAsOne) {
  const Terraced terraced({.supervised = true});
  const LogOfFailure log(terraced);
  Client client = terraced.connect();
  const std::vector<Tensor> tensors = create_mebibytes(client, 12);
  std::vector<Lease> leases = client.acquire(tensors, {.mode = Mode::kOverwrite}).value();
  for (std::size_t i = 0; i < tensors.size(); ++i) fill(leases[i].writable_bytes(), tensors[i].handle(), 1);
  leases.resize(6);  // the others are released
  const auto begin = std::chrono::steady_clock::now();
  for (int death = 0; death < 10; ++death) {
    if (death % 2 == 1) {  // every other one serves first, the rest are killed as they start
      ASSERT_TRUE(client.mark_step().has_value());
    }
    ASSERT_NO_FATAL_FAILURE(kill_daemon(terraced));
  }
  const double passed = milliseconds_since(begin);
  leases.clear();
  for (const Tensor& tensor : tensors) {
    const Result<Lease> lease = client.acquire(tensor, {.place = Place::device(0)});
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    EXPECT_EQ(first_difference(lease->bytes(), tensor.handle(), 1), kMiB) << tensor.name();
  }
  EXPECT_GE(client.reconnects(), 1u);
  EXPECT_TRUE(terraced.serves_on());
  figure(9, "ten kills within " + std::to_string(static_cast<int>(passed)) +
                " ms under terraced supervise; every tensor and lease kept");
}

// A tensor that nobody has written: it cannot be read, and what a writer finds there is zeros, in every tier.
void expect_fresh(Client& client, const Tensor& tensor) {
  const Result<Lease> read = client.acquire(tensor);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::kFailedPrecondition) << read.error().message;
  for (const Place place : {Place::device(0), Place::host()}) {
    const Result<Lease> write = client.acquire(tensor, {.place = place, .mode = Mode::kWrite});
    ASSERT_TRUE(write.has_value()) << write.error().message;
    EXPECT_TRUE(std::ranges::all_of(write->bytes(), [](std::byte byte) { return byte == std::byte{0}; }))
        << tensor.name() << " in " << place.name();
  }
  const Result<void> out = client.swap_out({&tensor, 1});
  ASSERT_TRUE(out.has_value()) << out.error().message;
  const Result<Lease> back = client.acquire(tensor);
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_TRUE(std::ranges::all_of(back->bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(EverythingGone, IsNeverServedAgain) {
  Terraced terraced({.supervised = true});
  const LogOfFailure log(terraced);
  Client client = terraced.connect();
  const std::vector<Tensor> tensors = create_mebibytes(client, 48);
  for (const Tensor& tensor : tensors) {
    const Result<Lease> lease = client.acquire(tensor, {.mode = Mode::kOverwrite});
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    std::ranges::fill(lease->writable_bytes(), std::byte{0xA5});
  }
  ASSERT_TRUE(client.swap_out(tensors).has_value());
  ASSERT_NO_FATAL_FAILURE(terraced.crash());
  terraced.start_again();

  const Result<Lease> lost = client.acquire(tensors[0]);
  ASSERT_FALSE(lost.has_value()) << "its session is gone";
  EXPECT_TRUE(lost.error().code == ErrorCode::kUnavailable || lost.error().code == ErrorCode::kNotFound)
      << lost.error().message;
  EXPECT_TRUE(terraced.status()["sessions"].empty());
  EXPECT_EQ(used_bytes(terraced.status()), 0u);
  Client next = terraced.connect();
  for (const Tensor& tensor : create_mebibytes(next, 48)) ASSERT_NO_FATAL_FAILURE(expect_fresh(next, tensor));
  figure(30, "48 MiB of the former file's content: none of it was served");
}

}  // namespace
}  // namespace terrace::faults
