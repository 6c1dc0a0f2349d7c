// SPDX-License-Identifier: Apache-2.0
// Shows that a lease which ends while the engine comes to wait for it holds nobody up: it ends in its table, rings no
// doorbell, and is not to be waited for. A thread ends it, in each round a little later.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

constexpr int kAsks = 3000;      // so many times it is tried
constexpr int kFailures = 1000;  // likewise
constexpr int kDelays = 250;     // so many times kTurns of a loop, which is about as long as the engine takes
constexpr int kTurns = 8;

// Whether the doorbell is to be rung for a read lease that a thread ends beside `act`: once the engine is `near`, and
// so much later.
template <typename Near, typename Act>
bool ends_beside(const Harness::Client& client, Handle tensor, int delay, const Near& near, const Act& act) {
  std::atomic<bool> there = false;
  std::atomic<bool> begins = false;
  bool rings = false;
  std::thread trainer([&] {
    there = true;
    while (!begins) std::this_thread::yield();
    while (!near()) continue;
    for (int turn = 0; turn < delay * kTurns; ++turn) std::atomic_signal_fence(std::memory_order_seq_cst);
    rings = Harness::release_in_table(client, tensor, shm::Mode::kRead);
  });
  while (!there) std::this_thread::yield();
  begins = true;
  act();
  trainer.join();
  return rings;
}

TEST(LeaseEnds, BesideWhoAsksToWriteInAShare) {
  Harness harness(three_tiers());
  OpenSession open;
  open.share = ShareAccess{.name = "weights", .create = true, .write = true};
  const Harness::Client& writer = *harness.open(open);
  open.share->create = false;
  const Harness::Client& reader = *harness.open(open);
  const Handle tensor = harness.create(writer, "layer", kMiB);
  harness.write(writer, tensor, 1000, kHost);
  for (int round = 0; round < kAsks; ++round) {
    ASSERT_TRUE(harness.acquire(reader, kHost, shm::Mode::kRead, {tensor}));
    RequestId asked{};
    const bool rings = ends_beside(
        reader, tensor, round % kDelays, [] { return true; },
        [&] { asked = harness.send(writer.id, Acquire{kHost, shm::Mode::kOverwrite, {tensor}}); });
    if (rings) harness.ring(reader);
    harness.settle();
    ASSERT_TRUE(harness.reply(asked)) << "round " << round;
    harness.release(writer, tensor, shm::Mode::kOverwrite);
  }
}

TEST(LeaseEnds, BesideTheFailureOfItsDevice) {
  for (int round = 0; round < kFailures; ++round) {
    Harness harness(three_tiers());
    const Harness::Client& first = *harness.open();
    const Harness::Client& client = *harness.open();
    const Handle before = harness.create(first, "before", kMiB);
    const Handle tensor = harness.create(client, "leased", kMiB);
    harness.write(first, before, 1);
    harness.write(client, tensor, 1);
    ASSERT_TRUE(harness.acquire(client, kDevice, shm::Mode::kRead, {tensor}));
    const bool rings = ends_beside(
        client, tensor, round % kDelays, [&] { return !first.table.load(before.slot).published(); },
        [&] { harness.engine->tier_failed(harness.now, TierId{0}, {ErrorCode::kDataLoss, "it fell off the bus", 0}); });
    harness.drain();
    if (rings) harness.ring(client);
    ASSERT_EQ(harness.status().tiers[0].used_bytes, 0u) << "round " << round;
  }
}

}  // namespace
}  // namespace terrace::engine
