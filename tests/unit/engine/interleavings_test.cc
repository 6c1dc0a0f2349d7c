// SPDX-License-Identifier: Apache-2.0
// Shows that two ranks that each hold what the other needs do not stand still, in any order of what they do: each
// within its guarantee, and both in one share.
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

struct Step {
  std::size_t tensor = 0;
  bool leases = false;  // else it releases
};

// What one rank does, in order. A step whose lease was refused is left out, and so is its release.
class Rank {
 public:
  Rank(Harness& harness, Harness::Client& client, std::vector<Handle> tensors, shm::Mode mode, std::uint32_t place)
      : harness_(harness), client_(client), tensors_(std::move(tensors)), mode_(mode), place_(place) {
    held_.resize(tensors_.size());
  }
  // False: it waits for the answer to the step before.
  bool take(const Step& step) {
    if (!hear()) return false;
    if (step.leases) {
      asked_ = harness_.send(client_.id, Acquire{place_, mode_, {tensors_[step.tensor]}});
      asked_tensor_ = step.tensor;
    } else if (held_[step.tensor]) {
      held_[step.tensor] = false;
      harness_.release(client_, tensors_[step.tensor], mode_);
    }
    harness_.settle();
    hear();
    return true;
  }
  bool hear() {
    if (!asked_) return true;
    if (!harness_.answered(*asked_)) return false;
    held_[asked_tensor_] = harness_.reply(*asked_).has_value();
    refused_ += held_[asked_tensor_] ? 0 : 1;
    asked_.reset();
    return true;
  }
  std::size_t refused() const { return refused_; }

 private:
  Harness& harness_;
  Harness::Client& client_;
  std::vector<Handle> tensors_;
  shm::Mode mode_;
  std::uint32_t place_;
  std::vector<bool> held_;
  std::optional<RequestId> asked_;
  std::size_t asked_tensor_ = 0;
  std::size_t refused_ = 0;
};

using Script = std::vector<Step>;

// Runs both in the order that the bits of `order` say; who waits is passed over until it is answered. Whether both came
// to their ends.
bool run(std::array<Rank*, 2> ranks, const std::array<Script, 2>& scripts, std::uint64_t order) {
  std::array<std::size_t, 2> at{};
  const std::size_t steps = scripts[0].size() + scripts[1].size();
  for (std::size_t tries = 0; tries < 4 * steps; ++tries) {
    const std::size_t wanted = tries < steps ? order >> tries & 1 : tries & 1;
    for (const std::size_t rank : {wanted, 1 - wanted})
      if (at[rank] < scripts[rank].size() && ranks[rank]->take(scripts[rank][at[rank]])) {
        ++at[rank];
        break;
      }
  }
  return at[0] == scripts[0].size() && at[1] == scripts[1].size() && ranks[0]->hear() && ranks[1]->hear();
}

constexpr std::uint64_t kOrders = 1u << 8;  // of two scripts of four steps; some are the same

TEST(Interleavings, OfTwoRanksWithinTheirGuarantees) {
  const Script both_then_back = {{0, true}, {1, true}, {0, false}, {1, false}};
  for (std::uint64_t order = 0; order < kOrders; ++order) {
    Harness harness(three_tiers(2 * kSegment, 4 * kSegment));
    std::vector<Rank> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      OpenSession open;
      open.guarantees = {{kDevice, kSegment}, {kHost, kSegment}};
      Harness::Client& client = *harness.open(open);
      std::vector<Handle> tensors;
      for (int i = 0; i < 4; ++i) {  // four of them are as much as both guarantees
        tensors.push_back(harness.create(client, std::to_string(i), kMiB));
        harness.write(client, tensors.back(), 1);
      }
      ranks.emplace_back(harness, client, tensors, shm::Mode::kRead, kDevice);
    }
    ASSERT_TRUE(run({ranks.data(), &ranks[1]}, {both_then_back, both_then_back}, order)) << "order " << order;
    EXPECT_EQ(ranks[0].refused() + ranks[1].refused(), 0u) << "order " << order;
  }
}

TEST(Interleavings, OfTwoRanksThatWriteInOneShare) {
  const Script forth = {{0, true}, {1, true}, {0, false}, {1, false}};
  const Script back = {{1, true}, {0, true}, {1, false}, {0, false}};
  std::size_t refused = 0;
  for (std::uint64_t order = 0; order < kOrders; ++order) {
    Harness harness(three_tiers());
    OpenSession open;
    open.share = ShareAccess{"common", true, true};
    Harness::Client& one = *harness.open(open);
    open.share->create = false;
    Harness::Client& two = *harness.open(open);
    std::vector<Handle> tensors;
    for (const char* name : {"x", "y"}) {
      tensors.push_back(harness.create(one, name, kMiB));
      harness.write(one, tensors.back(), 1, kHost);
    }
    Rank first(harness, one, tensors, shm::Mode::kWrite, kHost);
    Rank second(harness, two, tensors, shm::Mode::kWrite, kHost);
    ASSERT_TRUE(run({&first, &second}, {forth, back}, order)) << "order " << order;
    refused += first.refused() + second.refused();
  }
  EXPECT_GT(refused, 0u) << "in some of them each held what the other wanted";
}

}  // namespace
}  // namespace terrace::engine
