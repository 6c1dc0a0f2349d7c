// SPDX-License-Identifier: Apache-2.0
// S3-FIFO keeps as much of what is used as its authors' algorithm does, played with plain queues. The two are not equal
// use by use: the policy offers an order of all copies and moves none of them meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "base/random.h"
#include "engine/policy/policy.h"

namespace terrace::engine {
namespace {

constexpr std::uint32_t kTensors = 600;
constexpr std::size_t kCopies = 100;
constexpr int kUses = 30'000;
constexpr int kUsesMax = 3;

// The algorithm, each step of it as it is written down; the use that brings a tensor does not count in the small queue.
class Queues {
 public:
  bool use(std::uint32_t tensor) {
    const bool hit = here_[tensor];
    if (!hit) {
      if (small_.size() + main_.size() == kCopies) evict();
      const auto ghost = std::ranges::find(ghosts_, tensor);
      (ghost != ghosts_.end() ? main_ : small_).push_back(tensor);
      if (ghost != ghosts_.end()) ghosts_.erase(ghost);
      uses_[tensor] = 0;
      here_[tensor] = true;
    }
    uses_[tensor] = std::min(uses_[tensor] + 1, kUsesMax);
    return hit;
  }

 private:
  void evict() {
    while (true) {
      const bool from_small = small_.size() * 10 >= kCopies;
      auto& queue = from_small ? small_ : main_;
      const std::uint32_t tensor = queue.front();
      queue.pop_front();
      if (from_small ? uses_[tensor] <= 1 : uses_[tensor] == 0) {
        here_[tensor] = false;
        if (from_small) ghosts_.push_back(tensor);
        if (ghosts_.size() > 2 * kCopies) ghosts_.pop_front();
        return;
      }
      uses_[tensor] = from_small ? 0 : uses_[tensor] - 1;
      main_.push_back(tensor);
    }
  }

  std::deque<std::uint32_t> small_;
  std::deque<std::uint32_t> main_;
  std::deque<std::uint32_t> ghosts_;
  std::vector<int> uses_ = std::vector<int>(kTensors);
  std::vector<bool> here_ = std::vector<bool>(kTensors);
};

// The policy in the place of the algorithm.
class Copies {
 public:
  bool use(std::uint32_t tensor) {
    const bool hit = here_[tensor];
    if (!hit) {
      if (copies_++ >= kCopies) evict();
      policy_->arrived(Slot{tensor}, Time{});
      here_[tensor] = true;
    }
    policy_->used(Slot{tensor}, Time{});
    return hit;
  }

 private:
  void evict() {
    std::uint32_t victim = kTensors;
    policy_->offer_victims([&](Slot slot) {
      victim = static_cast<std::uint32_t>(slot);
      return false;
    });
    policy_->left(Slot{victim});
    here_[victim] = false;
  }

  std::unique_ptr<Policy> policy_ = make_s3_fifo_policy();
  std::vector<bool> here_ = std::vector<bool>(kTensors);
  std::size_t copies_ = 0;
};

TEST(S3FifoPolicy, KeepsAsMuchAsTheAlgorithm) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    Random random(seed);
    Queues queues;
    Copies copies;
    int hits_of_queues = 0;
    int hits_of_copies = 0;
    for (int use = 0; use < kUses; ++use) {
      auto tensor = static_cast<std::uint32_t>(random.below(kTensors));
      for (int again = 0; again < 2; ++again)
        tensor = std::min(tensor, static_cast<std::uint32_t>(random.below(kTensors)));
      hits_of_queues += queues.use(tensor) ? 1 : 0;
      hits_of_copies += copies.use(tensor) ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<double>(hits_of_copies) / kUses, static_cast<double>(hits_of_queues) / kUses, 0.02)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace terrace::engine
