// SPDX-License-Identifier: Apache-2.0
// Shows what a successor makes of what its predecessor left half told: steps, leases and tensors that nobody had an
// answer to, writes of sessions without a table of their own, sessions whose descriptors are lost, and a configuration
// that keeps more back than before.
#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

class Settle : public ::testing::Test {
 protected:
  Settle() {
    OpenSession open;
    open.maps_segments = true;
    client_ = harness_.open(open);
  }
  // Takes effect, and the daemon ends before it says so. With `position`: it had begun to say so, where the ring's tail
  // would be.
  void unanswered(Body body, std::optional<std::uint32_t> position = {}) {
    const RequestId id{1'000'000 + unanswered_++};
    harness_.engine->submit(harness_.now, {id, client_->id, kNever, std::move(body)});
    harness_.engine->take_output();
    if (position) harness_.engine->answering(id, *position);
  }
  void restart() {
    harness_.restart([] { return true; });
  }
  std::uint32_t answers() { return harness_.survivors()[0].completions; }

  Harness harness_{three_tiers()};
  Harness::Client* client_ = nullptr;
  std::uint64_t unanswered_ = 0;
};

TEST_F(Settle, AStepThatNobodyWasToldOfIsNotCounted) {
  ASSERT_TRUE(harness_.ask(client_->id, MarkStep{}));
  unanswered(MarkStep{});
  EXPECT_EQ(harness_.status().steps, 2u);
  restart();
  EXPECT_EQ(harness_.status().steps, 1u);
  EXPECT_EQ(harness_.status().sessions[0].step, 1u);
  ASSERT_TRUE(harness_.ask(client_->id, MarkStep{})) << "asked again";
  EXPECT_EQ(harness_.status().steps, 2u);
}

TEST_F(Settle, AnAnswerThatIsInTheRingStands) {
  ASSERT_TRUE(harness_.ask(client_->id, MarkStep{}));
  ASSERT_EQ(answers(), 1u);
  unanswered(MarkStep{}, answers());
  restart();
  EXPECT_EQ(harness_.status().steps, 2u);
  unanswered(MarkStep{}, answers() + 1);
  EXPECT_EQ(harness_.status().steps, 3u);
  restart();
  EXPECT_EQ(harness_.status().steps, 2u) << "the tail never came there";
}

TEST_F(Settle, ATensorThatNobodyWasToldOfGoesWhenItsLeaseEnds) {
  unanswered(CreateTensors{{spec_of("guessed", kMiB), spec_of("other", kMiB)}});
  const Handle guessed{Slot{0}, 1};
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kOverwrite, {guessed}));
  harness_.fill(*client_, guessed, 1);
  restart();
  EXPECT_EQ(harness_.status().sessions[0].tensors, 0u);
  EXPECT_EQ(harness_.status().tiers[2].used_bytes, kMiB) << "the lease stands, and keeps the bytes";
  EXPECT_EQ(harness_.look(*client_, guessed), 1u);
  harness_.create(*client_, "guessed", kMiB);
  harness_.release(*client_, guessed, shm::Mode::kOverwrite);
  EXPECT_EQ(harness_.status().tiers[2].used_bytes, kMiB) << "of the second one of the name";
}

TEST_F(Settle, AWriteOverGrpcEndsWithTheCallAndIsTorn) {
  const auto& remote = *harness_.open();
  const Handle whole = harness_.create(remote, "whole", kMiB);
  const Handle broken = harness_.create(remote, "broken", kMiB);
  harness_.write(remote, whole, 1);
  harness_.write(remote, broken, 2);
  ASSERT_TRUE(harness_.acquire(remote, kDevice, shm::Mode::kRead, {whole}));
  ASSERT_TRUE(harness_.acquire(remote, kDevice, shm::Mode::kWrite, {broken}));
  restart();
  harness_.settle();
  EXPECT_FALSE(remote.table.load(whole.slot).leased() || remote.table.load(broken.slot).leased());
  EXPECT_EQ(harness_.read(remote, whole), 1u) << "a reader harms nothing";
  const auto refused = harness_.read(remote, broken);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("'broken' is torn"));
  harness_.write(remote, broken, 3);
  EXPECT_EQ(harness_.read(remote, broken), 3u);
}

// Of a trainer's word only its leases are believed.
TEST_F(Settle, AWordThatDeniesATearIsTornAgain) {
  const Handle torn = harness_.create(*client_, "torn", kMiB);
  harness_.write(*client_, torn, 1);
  for (const shm::Mode mode : {shm::Mode::kOverwrite, shm::Mode::kRead})
    ASSERT_TRUE(harness_.acquire(*client_, kDevice, mode, {torn}));
  ASSERT_TRUE(harness_.ask(client_->id, Release{shm::Mode::kOverwrite, {torn}, true}));
  shm::Word word = client_->table.load(torn.slot);
  ASSERT_TRUE(word.torn && word.leased());
  word.torn = false;
  client_->slots[index(torn.slot)].word.store(word.packed());
  restart();
  EXPECT_TRUE(client_->table.load(torn.slot).torn);
  const auto refused = harness_.read(*client_, torn);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("'torn' is torn"));
}

TEST_F(Settle, ATensorThatNobodyWasToldOfMayBeGoneByThen) {
  unanswered(CreateTensors{{spec_of("gone", kMiB), spec_of("leased", kMiB)}});
  const Handle gone{Slot{0}, 1};
  const Handle leased{Slot{1}, 1};
  ASSERT_TRUE(harness_.acquire(*client_, kDevice, shm::Mode::kOverwrite, {leased}));
  ASSERT_TRUE(harness_.ask(client_->id, DeleteTensors{{gone, leased}}));
  const Handle next = harness_.create(*client_, "next", kMiB);
  ASSERT_EQ(next.slot, gone.slot);
  harness_.write(*client_, next, 3);
  restart();
  EXPECT_EQ(harness_.read(*client_, next), 3u) << "the slot's next tensor is none of it";
  EXPECT_EQ(harness_.status().tiers[2].used_bytes, 2 * kMiB);
  harness_.release(*client_, leased, shm::Mode::kOverwrite);
  EXPECT_EQ(harness_.status().tiers[2].used_bytes, kMiB);
}

TEST_F(Settle, ASessionWhoseDescriptorsAreLostIsGoneWithAllItHad) {
  const auto& kept = *harness_.open();
  for (const Harness::Client* client : std::array<const Harness::Client*, 2>{client_, &kept})
    harness_.write(*client, harness_.create(*client, "a", kMiB), 1);
  unanswered(MarkStep{});
  auto survivors = harness_.survivors();
  ASSERT_EQ(survivors.size(), 2u);
  survivors.erase(survivors.begin());
  auto opened = CatalogMemory::open(harness_.catalog_bytes(), Harness::shape());
  ASSERT_TRUE(opened);
  Options options = three_tiers();
  options.sessions_max = Harness::shape().sessions_max;
  auto successor = Engine::restore(options, *opened, survivors);
  ASSERT_TRUE(successor);
  (*successor)->check_invariants();
  ASSERT_EQ((*successor)->status().sessions.size(), 1u);
  EXPECT_EQ((*successor)->status().sessions[0].session, kept.id);
  EXPECT_EQ((*successor)->status().tiers[2].used_bytes, kMiB);
  EXPECT_EQ((*successor)->status().steps, 1u) << "nobody is there to mark it again";
  successor = Engine::restore(options, *opened, {});
  ASSERT_TRUE(successor);
  (*successor)->check_invariants();
  EXPECT_TRUE((*successor)->status().sessions.empty());
  EXPECT_EQ((*successor)->status().tiers[2].used_bytes, 0u);
}

// The spare is configured, and may be more than what is left: then what is there stands, and nothing comes to it.
TEST_F(Settle, ALargerSpareThanThereIsRoomForRefusesNewTensorsAlone) {
  const Handle a = harness_.create(*client_, "a", 8 * kMiB);
  Options options = three_tiers();
  options.sessions_max = Harness::shape().sessions_max;
  options.spare_share = 0.95;
  auto opened = CatalogMemory::open(harness_.catalog_bytes(), Harness::shape());
  auto successor = Engine::restore(options, *opened, harness_.survivors());
  ASSERT_TRUE(successor);
  const auto ask = [&](Body body) {
    (*successor)->submit(harness_.now, {RequestId{77}, client_->id, kNever, std::move(body)});
    return (*successor)->take_output().replies.at(0).result;
  };
  const auto refused = ask(CreateTensors{{spec_of("b", 1)}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("63750144 kept as spare"));
  EXPECT_EQ((*successor)->status().tiers[2].used_bytes, 8 * kMiB);
  EXPECT_TRUE(ask(DeleteTensors{{a}}));
  EXPECT_TRUE(ask(CreateTensors{{spec_of("b", 1)}}));
  (*successor)->check_invariants();
}

TEST_F(Settle, OfMoreRetiredRegionsThanTheCatalogHoldsTheFirstAreKept) {
  const Handle a = harness_.create(*client_, "a", kPageBytes);
  const Handle b = harness_.create(*client_, "b", kPageBytes);
  harness_.write(*client_, a, 5);
  for (std::size_t i = 0; i < kRetiredMax + 3; ++i) {
    harness_.write(*client_, b, i);
    ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {b}})) << "other places work";
    harness_.send(client_->id, Move{shm::kPlaceBlock, {a}});
    harness_.complete_orders();
    ASSERT_EQ(harness_.transfers.size(), 1u);
    harness_.complete_transfer(0, Error{ErrorCode::kInternal, "write failed", 5}, TierId{2});
  }
  EXPECT_EQ(harness_.status().tiers[2].retired_bytes, (kRetiredMax + 3) * kPageBytes);
  restart();
  EXPECT_EQ(harness_.status().tiers[2].retired_bytes, kRetiredMax * kPageBytes);
  ASSERT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {a}}));
  EXPECT_EQ(harness_.read(*client_, a), 5u);
}

}  // namespace
}  // namespace terrace::engine
