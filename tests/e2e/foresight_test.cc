// SPDX-License-Identifier: Apache-2.0
// Shows that under `policy = "next-use"` a trainer that marks its steps is planned for, and that bytes stay what they
// are while the plan moves them; and that nobody is planned for who marks none.
#include <gtest/gtest.h>

#include "e2e/terraced.h"

namespace terrace::e2e {
namespace {

constexpr std::uint64_t kBytes = 2 * kMiB;
constexpr std::uint64_t kTensors = 16;  // 32 MiB, in 8 MiB of device and 16 MiB of memory

struct Training {
  Terraced terraced{TerracedOptions{.settings = "policy = \"next-use\"\nlog_level = \"debug\"\n"}};
  Client client = terraced.connect();
  std::vector<Tensor> tensors;
  std::uint64_t step = 0;

  Training() {
    for (std::uint64_t at = 0; at < kTensors; ++at) {
      tensors.push_back(client.create({.name = "t" + std::to_string(at), .bytes = kBytes}).value());
      fill(client.acquire(tensors[at], {.mode = Mode::kOverwrite}).value().writable_bytes(), at, 0);
    }
  }

  // Each tensor is read and then rewritten, forward and backward.
  void one_step() {
    for (std::uint64_t use = 0; use < 2 * kTensors; ++use) {
      const std::uint64_t at = use < kTensors ? use : 2 * kTensors - 1 - use;
      const bool writes = use >= kTensors;
      auto lease =
          client.acquire(tensors[at], {.place = Place::device(0), .mode = writes ? Mode::kWrite : Mode::kRead});
      ASSERT_TRUE(lease.has_value()) << lease.error().message;
      ASSERT_EQ(first_difference(lease->bytes(), at, step), kBytes) << "tensor " << at << ", step " << step;
      if (writes) fill(lease->writable_bytes(), at, step + 1);
    }
    ++step;
  }
  bool planned() const { return terraced.log().find("a plan of") != std::string::npos; }
};

TEST(Foresight, BytesStayWhatTheyAreUnderAPlan) {
  Training training;
  const auto marked_step = [&] {
    ASSERT_TRUE(training.client.mark_step(StepKind::kTrain));
    training.one_step();
  };
  EXPECT_TRUE(eventually([&] {
    marked_step();
    return testing::Test::HasFatalFailure() || training.planned();
  })) << training.terraced.log();
  for (int more = 0; more < 5 && !HasFatalFailure(); ++more) marked_step();
}

TEST(Foresight, NobodyIsPlannedForWhoMarksNoSteps) {
  Training training;
  for (int step = 0; step < 5 && !HasFatalFailure(); ++step) training.one_step();
  EXPECT_FALSE(training.planned());
}

}  // namespace
}  // namespace terrace::e2e
