// SPDX-License-Identifier: Apache-2.0
// Shows that fifty losses of the daemon, under many threads at once, lose no call and carry none out twice.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "unit/client/scripted_daemon.h"

namespace terrace::client {
namespace {

using namespace std::chrono_literals;

constexpr int kLosses = 50;
constexpr int kAskers = 6;

// A daemon that remembers, as the real one does, what it carried out.
class Remembering {
 public:
  explicit Remembering(ScriptedDaemon& daemon) : daemon_(daemon) {}

  // Takes one request, if there is one, carries it out if no daemon before has, and answers it if told to.
  bool serve(bool answers) {
    const std::optional<Asked> asked = daemon_.next_if_any();
    if (!asked) return false;
    const bool fresh = carried_out_.insert(asked->submission.id).second;
    EXPECT_TRUE(fresh || asked->submission.flags == shm::kResubmitted) << "a second time without saying so";
    EXPECT_FALSE(answered_.contains(asked->submission.id)) << "asked again for what was answered";
    if (!answers) return true;
    answered_.insert(asked->submission.id);
    daemon_.refuse(*asked, ErrorCode::kFailedPrecondition,
                   asked->handles.empty() ? "none" : std::to_string(asked->handles[0] & 0xFFFF));
    return true;
  }
  std::size_t carried_out() const { return carried_out_.size(); }

 private:
  ScriptedDaemon& daemon_;
  std::set<std::uint64_t> carried_out_;
  std::set<std::uint64_t> answered_;
};

TEST(ReconnectHammer, LosesNoCallAndDoublesNone) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  ScriptedDaemon daemon;
  Client client = daemon.open();
  std::vector<Tensor> tensors;
  for (std::uint32_t slot = 4; slot < 4 + kAskers; ++slot) {
    tensors.push_back(daemon.create(client, std::to_string(slot), 64, slot));
  }
  const Tensor resident = daemon.create(client, "resident", 64, 3);
  daemon.pass_segment(shm::kPlaceHost, 0);
  daemon.publish(3, {.state = shm::State::kResident}, 0);

  std::atomic<bool> over = false;
  std::atomic<int> alive = kAskers;
  std::atomic<std::size_t> calls = 0;
  std::atomic<std::size_t> wrong = 0;
  std::vector<std::jthread> threads;
  for (int asker = 0; asker < kAskers; ++asker) {
    threads.emplace_back([&, asker] {
      const Tensor& own = tensors[static_cast<std::size_t>(asker)];
      while (!over) {
        Pending<void> later = client.swap_out_async({&own, 1});
        const Result<Lease> lease = client.acquire(own);  // a miss: the daemon says which tensor was meant
        const Result<void> moved = later.wait(60s);
        if (lease || lease.error().message != own.name()) ++wrong;
        if (moved || moved.error().message != own.name()) ++wrong;
        calls += 2;
      }
      --alive;
    });
  }
  for (int leaser = 0; leaser < 2; ++leaser) {
    threads.emplace_back([&, leaser] {
      while (!over) {
        const Result<Lease> lease = client.acquire(resident, {.mode = leaser == 0 ? Mode::kRead : Mode::kWrite});
        if (!lease) ++wrong;
      }
    });
  }

  Remembering memory(daemon);
  const auto serve = [&](std::uint32_t count, bool answers) {
    for (std::uint32_t served = 0; served < count && alive > 0;) {
      if (memory.serve(answers)) ++served;
    }
  };
  for (int loss = 0; loss < kLosses; ++loss) {
    serve(static_cast<std::uint32_t>(random() % 40), true);
    serve(static_cast<std::uint32_t>(random() % kAskers), false);  // at least one asker gets on
    daemon.hang_up();
    daemon.accept_resume();
    if (random() % 4 == 0) {  // dies once more, before it has said anything
      daemon.reset_rings();
      daemon.hang_up();
      daemon.accept_resume();
    }
    daemon.resume();
  }
  over = true;
  EXPECT_TRUE(eventually([&] {
    memory.serve(true);
    return alive == 0;
  }));
  threads.clear();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(memory.carried_out(), calls) << "each call once";
  EXPECT_EQ(client.reconnects(), static_cast<std::uint64_t>(kLosses));
  EXPECT_FALSE(daemon.word(3).leased());
  EXPECT_EQ(client.held(), 0u);
}

}  // namespace
}  // namespace terrace::client
