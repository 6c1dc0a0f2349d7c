// SPDX-License-Identifier: Apache-2.0
// Shows what becomes of a trainer's step in its own table that falls between two of the engine's: a lease that is
// taken, given back or given up while room is being made, and while copies are dropped. The moments are the policy's,
// which is asked in the midst of them.
#include <gmock/gmock.h>

#include <array>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

// What the trainer does at the next such moment; once.
struct Moments {
  std::function<void()> after_a_survey;
  std::function<void()> as_a_copy_leaves;
};

class Watched final : public Policy {
 public:
  explicit Watched(Moments& moments) : moments_(moments) {}
  void arrived(Slot slot, Time now) override { order_->arrived(slot, now); }
  void used(Slot slot, Time now) override { order_->used(slot, now); }
  void left(Slot slot) override {
    order_->left(slot);
    if (const auto act = std::exchange(moments_.as_a_copy_leaves, nullptr)) act();
  }
  void offer_victims(const std::function<bool(Slot)>& take) const override {
    order_->offer_victims(take);
    if (const auto act = std::exchange(moments_.after_a_survey, nullptr)) act();
  }

 private:
  std::unique_ptr<Policy> order_ = make_lru_policy();
  Moments& moments_;
};

class Races : public ::testing::Test {
 protected:
  Options watched(std::uint64_t device, std::uint64_t memory) {
    Options options = three_tiers(device, memory);
    options.make_policy = [this] { return std::make_unique<Watched>(moments_); };
    return options;
  }
  void begin(std::uint64_t device, std::uint64_t memory) {
    harness_.emplace(watched(device, memory));
    client_ = harness_->open();
  }
  Handle written(const char* name, std::uint64_t bytes, std::uint64_t value, std::uint32_t place) {
    const Handle tensor = harness_->create(*client_, name, bytes);
    harness_->write(*client_, tensor, value, place);
    return tensor;
  }
  // As a trainer's thread does, without the daemon.
  void lease(Handle tensor, shm::Mode mode) {
    LeaseTable table = client_->table;
    ASSERT_EQ(shm::acquire(table.word(tensor.slot), tensor.incarnation, mode).outcome, shm::Outcome::kDone);
  }
  RequestId overwrite(Handle tensor) {
    return harness_->send(client_->id, Acquire{kDevice, shm::Mode::kOverwrite, {tensor}});
  }
  shm::Word word(Handle tensor) { return client_->table.load(tensor.slot); }
  // A device full of clean copies, and two tensors in memory that are asked to come there.
  void fill_device_with_clean_copies() {
    if (client_ == nullptr) begin(4 * kMiB, 8 * kMiB);
    for (const char* name : {"0", "1", "2", "3"}) clean_.push_back(written(name, kMiB, 9, kHost));
    for (const Handle tensor : clean_) EXPECT_EQ(harness_->read(*client_, tensor), 9u);
    first_ = written("first", kMiB, 10, kHost);
    second_ = written("second", kMiB, 20, kHost);
  }
  void refused_with_nothing_taken(const char* what) {
    const auto refused = harness_->acquire(*client_, kDevice, shm::Mode::kRead, {first_, second_});
    EXPECT_FALSE(moments_.after_a_survey) << "the moment came";
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_THAT(refused.error().message, HasSubstr(what));
    EXPECT_EQ(harness_->status().tiers[0].used_bytes, 2 * kMiB) << "the room that was made is free";
    EXPECT_EQ(word(first_).state, shm::State::kResident) << "and the first of the set on the fast path again";
    EXPECT_EQ(harness_->read(*client_, first_, kHost), 10u);
  }

  Moments moments_;
  std::optional<Harness> harness_;
  Harness::Client* client_ = nullptr;
  std::vector<Handle> clean_;
  Handle first_;
  Handle second_;
};

TEST_F(Races, ALeaseTakenElsewhereWhileRoomIsMade) {
  fill_device_with_clean_copies();
  moments_.after_a_survey = [&] { lease(second_, shm::Mode::kRead); };
  refused_with_nothing_taken("'second' is leased at host");
  EXPECT_EQ(harness_->look(*client_, second_), 20u) << "the lease stands";
  harness_->release(*client_, second_, shm::Mode::kRead);
  EXPECT_TRUE(harness_->acquire(*client_, kDevice, shm::Mode::kRead, {first_, second_}));
}

TEST_F(Races, ALeaseThatAnotherSessionOfAShareTakesWhileRoomIsMadeIsWaitedFor) {
  harness_.emplace(watched(4 * kMiB, 8 * kMiB));
  OpenSession open;
  open.share = ShareAccess{.name = "weights", .create = true, .write = true};
  client_ = harness_->open(open);
  open.share->create = false;
  Harness::Client& other = *harness_->open(open);
  fill_device_with_clean_copies();
  for (const Handle tensor : {first_, second_}) EXPECT_TRUE(harness_->read(other, tensor, kHost));
  moments_.after_a_survey = [&] {
    ASSERT_EQ(shm::acquire(other.table.word(second_.slot), second_.incarnation, shm::Mode::kRead).outcome,
              shm::Outcome::kDone);
  };
  const RequestId asked = harness_->send(client_->id, Acquire{kDevice, shm::Mode::kRead, {first_, second_}});
  harness_->settle();
  EXPECT_FALSE(moments_.after_a_survey) << "the moment came";
  EXPECT_FALSE(harness_->answered(asked));
  EXPECT_EQ(harness_->status().tiers[0].used_bytes, 2 * kMiB) << "the room that was made is free";
  for (const Handle tensor : {first_, second_})
    for (const Harness::Client* client : std::array<const Harness::Client*, 2>{client_, &other})
      EXPECT_EQ(client->table.load(tensor.slot).state, shm::State::kShared) << "nothing is taken meanwhile";
  EXPECT_EQ(harness_->look(other, second_), 20u);
  harness_->release(other, second_, shm::Mode::kRead);
  harness_->settle();
  EXPECT_TRUE(harness_->reply(asked)) << "its end wakes who waits";
  EXPECT_EQ(harness_->look(*client_, second_), 20u);
}

TEST_F(Races, AnOverwriteGivenUpWhileRoomIsMade) {
  fill_device_with_clean_copies();
  moments_.after_a_survey = [&] {
    lease(second_, shm::Mode::kOverwrite);
    LeaseTable table = client_->table;
    shm::tear(table.word(second_.slot), second_.incarnation);
    Harness::release_in_table(*client_, second_, shm::Mode::kOverwrite);
  };
  refused_with_nothing_taken("'second' is torn");
  EXPECT_THAT(harness_->read(*client_, second_).error().message, HasSubstr("torn"));
  harness_->write(*client_, second_, 21);
  EXPECT_EQ(harness_->read(*client_, second_), 21u);
}

TEST_F(Races, ALeaseThatEndsBeforeItIsWaitedForIsNotWaitedFor) {
  begin(2 * kMiB, 8 * kMiB);
  const Handle held = written("held", 2 * kMiB, 1, kDevice);
  const Handle next = harness_->create(*client_, "next", 2 * kMiB);
  lease(held, shm::Mode::kRead);
  moments_.after_a_survey = [&] {
    EXPECT_FALSE(Harness::release_in_table(*client_, held, shm::Mode::kRead)) << "nobody rings";
  };
  const RequestId asked = overwrite(next);
  harness_->settle();
  EXPECT_TRUE(harness_->reply(asked));
  EXPECT_FALSE(word(held).wanted);
  harness_->release(*client_, next, shm::Mode::kOverwrite);
  EXPECT_EQ(harness_->read(*client_, held), 1u);
}

TEST_F(Races, ALeaseTakenWhileMemoryIsFreedForTheCopy) {
  begin(2 * kMiB, 2 * kMiB);
  const Handle clean = written("clean", 2 * kMiB, 5, kHost);
  ASSERT_TRUE(harness_->ask(client_->id, Move{shm::kPlaceBlock, {clean}}));
  EXPECT_EQ(harness_->read(*client_, clean, kHost), 5u);
  const Handle dirty = written("dirty", 2 * kMiB, 6, kDevice);
  const Handle next = harness_->create(*client_, "next", 2 * kMiB);
  moments_.as_a_copy_leaves = [&] { lease(dirty, shm::Mode::kRead); };
  const RequestId asked = overwrite(next);
  harness_->settle();
  EXPECT_FALSE(moments_.as_a_copy_leaves);
  EXPECT_FALSE(harness_->answered(asked));
  EXPECT_TRUE(word(dirty).wanted) << "its end is waited for, as that of any lease";
  EXPECT_EQ(harness_->look(*client_, dirty), 6u);
  harness_->release(*client_, dirty, shm::Mode::kRead);
  harness_->settle();
  EXPECT_TRUE(harness_->reply(asked));
  harness_->release(*client_, next, shm::Mode::kOverwrite);
  EXPECT_EQ(harness_->read(*client_, dirty), 6u);
  EXPECT_EQ(harness_->read(*client_, clean), 5u);
}

TEST_F(Races, AWriteIntoACleanCopyThatWasAboutToGo) {
  begin(2 * kMiB, 2 * kMiB);
  std::vector<Handle> clean;
  for (const char* name : {"one", "other"}) clean.push_back(written(name, kMiB, 5, kHost));
  ASSERT_TRUE(harness_->ask(client_->id, Move{shm::kPlaceBlock, clean}));
  for (const Handle tensor : clean) EXPECT_EQ(harness_->read(*client_, tensor, kHost), 5u);
  const Handle dirty = written("dirty", 2 * kMiB, 6, kDevice);
  const Handle next = harness_->create(*client_, "next", 2 * kMiB);
  moments_.as_a_copy_leaves = [&] {
    lease(clean[1], shm::Mode::kWrite);
    harness_->fill(*client_, clean[1], 7);
    Harness::release_in_table(*client_, clean[1], shm::Mode::kWrite);
  };
  const RequestId asked = overwrite(next);
  harness_->settle();
  EXPECT_FALSE(moments_.as_a_copy_leaves);
  EXPECT_TRUE(harness_->reply(asked));
  harness_->release(*client_, next, shm::Mode::kOverwrite);
  EXPECT_EQ(harness_->read(*client_, clean[1]), 7u) << "written back, not dropped";
  EXPECT_EQ(harness_->read(*client_, clean[0]), 5u);
  EXPECT_EQ(harness_->read(*client_, dirty), 6u);
}

TEST_F(Races, ALeaseOfWhatIsAboutToBeForgottenKeepsIt) {
  begin(4 * kMiB, 8 * kMiB);
  const Handle gone = written("gone", kMiB, 1, kDevice);
  const Handle kept = written("kept", kMiB, 2, kDevice);
  moments_.as_a_copy_leaves = [&] { lease(kept, shm::Mode::kRead); };
  ASSERT_TRUE(harness_->ask(client_->id, DontNeed{{gone, kept}}));
  EXPECT_FALSE(moments_.as_a_copy_leaves);
  EXPECT_EQ(harness_->look(*client_, kept), 2u);
  harness_->release(*client_, kept, shm::Mode::kRead);
  EXPECT_EQ(harness_->read(*client_, kept), 2u);
  EXPECT_THAT(harness_->read(*client_, gone).error().message, HasSubstr("never written"));
}

TEST_F(Races, AnOverwriteGivenUpWhileItsSetIsPinned) {
  begin(4 * kMiB, 8 * kMiB);
  const Handle torn = written("torn", kMiB, 1, kDevice);
  const Handle coming = written("coming", kMiB, 2, kDevice);
  ASSERT_TRUE(harness_->ask(client_->id, Move{shm::kPlaceBlock, {coming}}));
  ASSERT_TRUE(harness_->acquire(*client_, kDevice, shm::Mode::kOverwrite, {torn}));
  const RequestId pins = harness_->send(client_->id, Pin{kDevice, {torn, coming}});
  harness_->complete_orders();
  ASSERT_EQ(harness_->transfers.size(), 1u);
  EXPECT_FALSE(harness_->answered(pins));
  EXPECT_TRUE(harness_->reply(harness_->send(client_->id, Release{shm::Mode::kOverwrite, {torn}, true})));
  harness_->settle();
  EXPECT_TRUE(harness_->reply(pins)) << "a pin needs no content";
  EXPECT_THAT(harness_->read(*client_, torn).error().message, HasSubstr("torn"));
  EXPECT_EQ(harness_->read(*client_, coming), 2u);
  harness_->write(*client_, torn, 3);
  EXPECT_EQ(harness_->read(*client_, torn), 3u);
}

TEST_F(Races, AnOverwriteGivenUpWhileItsSetIsReadEndsTheRead) {
  begin(4 * kMiB, 8 * kMiB);
  const Handle torn = written("torn", kMiB, 1, kDevice);
  const Handle coming = written("coming", kMiB, 2, kDevice);
  ASSERT_TRUE(harness_->ask(client_->id, Move{shm::kPlaceBlock, {coming}}));
  ASSERT_TRUE(harness_->acquire(*client_, kDevice, shm::Mode::kOverwrite, {torn}));
  const RequestId reads = harness_->send(client_->id, Acquire{kDevice, shm::Mode::kRead, {torn, coming}});
  harness_->complete_orders();
  ASSERT_EQ(harness_->transfers.size(), 1u);
  EXPECT_TRUE(harness_->reply(harness_->send(client_->id, Release{shm::Mode::kOverwrite, {torn}, true})));
  const auto refused = harness_->reply(reads);
  ASSERT_FALSE(refused) << "at once: no byte that comes could help";
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("'torn' is torn"));
  harness_->settle();
  EXPECT_FALSE(word(torn).leased() || word(coming).leased());
  EXPECT_EQ(harness_->read(*client_, coming), 2u);
}

// What the grant mended before it failed is torn as before.
TEST_F(Races, ASetWithATensorThatTakesNoMoreLeasesLeavesTheOthersAsTheyWere) {
  begin(4 * kMiB, 8 * kMiB);
  const Handle torn = written("torn", kMiB, 1, kDevice);
  const Handle full = written("full", kMiB, 2, kDevice);
  ASSERT_TRUE(harness_->acquire(*client_, kDevice, shm::Mode::kOverwrite, {torn}));
  ASSERT_TRUE(harness_->acquire(*client_, kDevice, shm::Mode::kRead, {torn}));
  harness_->abandon(*client_, torn);
  shm::Word most = word(full);
  most.writers = shm::kWritersMax;
  client_->slots[index(full.slot)].word.store(most.packed());
  const auto refused = harness_->acquire(*client_, kDevice, shm::Mode::kOverwrite, {torn, full});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("'full' has 0 readers and 4095 writers"));
  EXPECT_TRUE(word(torn).torn);
  EXPECT_EQ(word(torn).writers, 0u);
  EXPECT_EQ(word(torn).readers, 1u);
  EXPECT_THAT(harness_->read(*client_, torn).error().message, HasSubstr("torn"));
}

}  // namespace
}  // namespace terrace::engine
