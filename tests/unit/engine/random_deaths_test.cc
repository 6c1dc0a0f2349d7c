// SPDX-License-Identifier: Apache-2.0
// Shows that the laws hold over the deaths of the engine's process between any two stores of its catalog: nothing
// released is lost, no lease is lost or counted twice, nothing that was answered is undone, and what was not answered
// is done once.
#include "unit/engine/random_engine.h"

namespace terrace::engine {
namespace {

class DyingEngine : public RandomEngine {
 public:
  DyingEngine(unsigned seed, Options options) : RandomEngine(seed, std::move(options), true) {}

  // With a catalog: the process ends now and then, mostly between two stores, and what nobody was told of is asked
  // again.
  void run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      arm();
      try {
        act();
        harness_.catalog->between_stores = nullptr;
        take_replies();
        if (chance(400)) restart();
      } catch (const Death&) {
        restart();
      }
      if (step % 2000 == 1999) calm();
    }
    if (!::testing::Test::HasFailure()) finish();
  }
  std::uint64_t deaths() const { return deaths_; }

 private:
  struct Death {};

  void arm() {
    if (!chance(30)) return;
    harness_.catalog->between_stores = [this, left = below(chance(2) ? 12 : 400)]() mutable {
      if (left-- == 0) throw Death{};
    };
  }

  void restart() {
    ++deaths_;
    harness_.catalog->between_stores = nullptr;
    take_replies();  // those that were in their rings
    const std::vector<RequestId> lost = harness_.restart([this] { return chance(2); });
    take_replies();
    for (std::size_t index = 0; index < actors_.size(); ++index) {
      Actor& actor = actors_[index];
      if (actor.client != nullptr && actor.client->gone) actor = Actor{};
      check_counts(actor);
    }
    died_.clear();
    for (std::size_t index = 0; index < actors_.size(); ++index) {
      if (!actors_[index].ending) continue;
      harness_.engine->session_died(harness_.now, actors_[index].client->id);
      harness_.drain();
      died_.push_back(index);
    }
    for (const RequestId id : lost) {
      const auto found = asked_.find(id);
      if (found == asked_.end()) continue;  // of calm()'s own
      Asked asked = std::move(found->second);
      asked_.erase(found);
      ask_again(asked.actor, std::move(asked.body));
    }
    take_replies();
  }

  // Lease counts are what the trainers hold, and nothing else.
  void check_counts(const Actor& actor) {
    if (actor.client == nullptr || actor.ending) return;
    for (const ModelTensor& tensor : actor.tensors) {
      const shm::Word word = actor.client->table.load(tensor.handle.slot);
      const auto held = [&](bool reads) {
        return std::ranges::count_if(actor.leases, [&](const Lease& lease) {
          return lease.handle == tensor.handle && (lease.mode == shm::Mode::kRead) == reads;
        });
      };
      EXPECT_EQ(word.readers, held(true)) << tensor.name;
      EXPECT_EQ(word.writers, held(false)) << tensor.name;
    }
  }

  void ask_again(std::size_t index, Body body) {
    Actor& actor = actors_[index];
    if (std::holds_alternative<OpenSession>(body)) {
      actor.opening.reset();
      return;
    }
    if (actor.client == nullptr || actor.ending) return;
    if (const auto* gone = std::get_if<DeleteTensors>(&body)) {
      for (const Handle handle : gone->tensors) {
        std::erase_if(actor.tensors, [&](const ModelTensor& tensor) { return tensor.handle == handle; });
        std::erase(actor.pinned, handle);
        send(index, DeleteTensors{{handle}}, kNever);  // done already, or done now
      }
      return;
    }
    send(index, std::move(body), kNever);
  }

  std::uint64_t deaths_ = 0;
};

class RandomDeaths : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomDeaths, LoseNothing) {
  std::cout << "seed " << GetParam() << '\n';
  DyingEngine engine(GetParam(), options_for(GetParam()));
  engine.run(10'000);
  EXPECT_GT(engine.deaths(), 20u);
  std::cout << engine.deaths() << " deaths\n";
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomDeaths, ::testing::Range(0u, 24u));

}  // namespace
}  // namespace terrace::engine
