// SPDX-License-Identifier: Apache-2.0
// Shows what a successor does while its predecessor's reads and writes on the block tier are not done yet: it serves
// everything that needs neither, gives nothing up for what cannot be had, keeps what a read may still land in out of
// use, over its own death too, and goes on with all of it once the last is done.
#include <gmock/gmock.h>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMemoryMib = 4;

class Former : public ::testing::Test {
 protected:
  Former() {
    OpenSession open;
    open.maps_segments = true;
    open.local_world_size = 2;
    client_ = harness_.open(open);
  }
  static Options memory_and_block() {
    Options options;
    options.tiers = {tier_of("memory", tier::Kind::kMemory, kMemoryMib * kMiB),
                     tier_of("block", tier::Kind::kBlock, 64 * kMiB)};
    return options;
  }
  Handle written(const std::string& name, std::uint64_t value) {
    const Handle handle = harness_.create(*client_, name, kMiB);
    harness_.write(*client_, handle, value, kHost);
    return handle;
  }
  Handle on_disk(const std::string& name, std::uint64_t value) {
    const Handle handle = written(name, value);
    EXPECT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {handle}}));
    return handle;
  }
  // It is being read from the disk when the process ends.
  Handle being_read(const std::string& name, std::uint64_t value) {
    const Handle handle = on_disk(name, value);
    harness_.send(client_->id, Move{kHost, {handle}});
    harness_.complete_orders();
    EXPECT_EQ(harness_.transfers.size(), 1u);
    return handle;
  }
  void die(bool lingers = true) {
    harness_.restart([] { return false; }, lingers);
  }
  void land() {
    harness_.land([] { return true; });
  }
  void end_former() {
    harness_.end_former([] { return true; });
    harness_.settle();
  }
  std::string refusal(Body body) {
    const RequestId id = harness_.send(client_->id, std::move(body), harness_.now + Duration{10});
    harness_.settle();
    harness_.advance(harness_.now + Duration{10});
    const auto reply = harness_.reply(id);
    EXPECT_FALSE(reply.has_value());
    return reply ? "" : reply.error().message;
  }
  // How many more tensors are written before memory has no room.
  std::vector<Handle> fill_memory() {
    std::vector<Handle> fresh;
    while (fresh.size() < 2 * kMemoryMib) {
      const Handle handle = harness_.create(*client_, "fresh" + std::to_string(fresh.size()), kMiB);
      const RequestId id =
          harness_.send(client_->id, Acquire{kHost, shm::Mode::kOverwrite, {handle}}, harness_.now + Duration{10});
      harness_.settle();
      harness_.advance(harness_.now + Duration{10});
      if (!harness_.reply(id)) break;
      harness_.fill(*client_, handle, 100 * (fresh.size() + 1));
      harness_.release(*client_, handle, shm::Mode::kOverwrite);
      fresh.push_back(handle);
    }
    return fresh;
  }
  void expect_whole(const std::vector<Handle>& fresh) {
    for (std::size_t i = 0; i < fresh.size(); ++i) EXPECT_EQ(harness_.read(*client_, fresh[i], kHost), 100 * (i + 1));
  }

  Harness harness_{memory_and_block()};
  Harness::Client* client_ = nullptr;
};

TEST_F(Former, WhatIsInMemoryIsServedAtOnce) {
  const Handle here = written("here", 7);
  die();
  EXPECT_EQ(harness_.read(*client_, here, kHost), 7u);
  harness_.write(*client_, here, 8, kHost, shm::Mode::kWrite);
  EXPECT_EQ(harness_.read(*client_, here, kHost), 8u);
  harness_.write(*client_, harness_.create(*client_, "new", kMiB), 9, kHost);
}

TEST_F(Former, WhoNeedsTheBlockTierWaitsToItsOwnDeadline) {
  const Handle away = on_disk("away", 3);
  const Handle here = written("here", 7);
  die();
  EXPECT_THAT(refusal(Acquire{kHost, shm::Mode::kRead, {away}}), HasSubstr("block tier is not served before"));
  EXPECT_THAT(refusal(Move{shm::kPlaceBlock, {here}}), HasSubstr("block tier is not served before"));
  EXPECT_EQ(harness_.read(*client_, here, kHost), 7u) << "it was not taken away for a write that cannot be";
  const RequestId patient = harness_.send(client_->id, Move{kHost, {away}});
  EXPECT_FALSE(harness_.answered(patient));
  EXPECT_TRUE(harness_.transfers.empty());
  end_former();
  EXPECT_TRUE(harness_.reply(patient).has_value());
  EXPECT_EQ(harness_.read(*client_, away, kHost), 3u);
  EXPECT_TRUE(harness_.ask(client_->id, Move{shm::kPlaceBlock, {here}}));
}

TEST_F(Former, WhatIsOverwrittenNeedsNoDisk) {
  const Handle away = on_disk("away", 3);
  die();
  harness_.write(*client_, away, 4, kHost);
  EXPECT_EQ(harness_.read(*client_, away, kHost), 4u);
  end_former();
  EXPECT_EQ(harness_.read(*client_, away, kHost), 4u);
}

TEST_F(Former, ASetNeedsTheDiskForWhatItReadsOfIt) {
  const Handle away = on_disk("away", 3);
  const Handle other = on_disk("other", 5);
  die();
  const std::vector modes{shm::Mode::kOverwrite, shm::Mode::kRead};
  EXPECT_THAT(refusal(Acquire{kHost, modes, {away, other}}), HasSubstr("block tier is not served before"));
  const RequestId waits = harness_.send(client_->id, Acquire{kHost, modes, {away, other}});
  harness_.settle();
  EXPECT_FALSE(harness_.answered(waits));
  end_former();
  ASSERT_TRUE(harness_.reply(waits).has_value());
  EXPECT_EQ(harness_.look(*client_, other), 5u);
}

TEST_F(Former, WhatAReadMayLandInIsNobodyElses) {
  const Handle read = being_read("read", 3);
  die();
  const std::vector<Handle> fresh = fill_memory();
  EXPECT_EQ(fresh.size(), kMemoryMib - 1);
  land();
  expect_whole(fresh);
  EXPECT_THAT(refusal(Acquire{kHost, shm::Mode::kOverwrite, {read}}), HasSubstr("former daemon"));
  end_former();
  expect_whole(fresh);
  EXPECT_EQ(harness_.read(*client_, read, kHost), 3u);
}

TEST_F(Former, SoItIsAfterAnotherDeath) {
  const Handle read = being_read("read", 3);
  die();
  die(false);
  die(true);
  const std::vector<Handle> fresh = fill_memory();
  EXPECT_EQ(fresh.size(), kMemoryMib - 1);
  die(false);
  land();
  expect_whole(fresh);
  end_former();
  EXPECT_EQ(harness_.read(*client_, read, kHost), 3u);
  die(false);
  EXPECT_FALSE(harness_.former_at_work()) << "of the last one nothing was left";
  expect_whole(fresh);
}

TEST_F(Former, CleanCopiesMakeRoomAndDirtyOnesStay) {
  const Handle clean = on_disk("clean", 3);
  const Handle dirty = written("dirty", 4);
  EXPECT_EQ(harness_.read(*client_, clean, kHost), 3u);
  die();
  EXPECT_EQ(harness_.read(*client_, clean, kHost), 3u);
  const std::vector<Handle> fresh = fill_memory();
  EXPECT_EQ(fresh.size(), kMemoryMib - 1) << "the clean copy made room for the last, though it was used last";
  const Handle late = harness_.create(*client_, "late", kMiB);
  EXPECT_THAT(refusal(Acquire{kHost, shm::Mode::kOverwrite, {late}}), HasSubstr("was still being made; the block"));
  expect_whole(fresh);
  EXPECT_EQ(harness_.read(*client_, dirty, kHost), 4u);
  for (const LinkStatus& link : harness_.status().links) EXPECT_EQ(link.queued, 0u) << "nothing is cleaned in advance";
  const RequestId patient = harness_.send(client_->id, Acquire{kHost, shm::Mode::kOverwrite, {late}});
  end_former();
  EXPECT_TRUE(harness_.reply(patient).has_value()) << "one of them was written down";
  harness_.fill(*client_, late, 5);
  harness_.release(*client_, late, shm::Mode::kOverwrite);
  expect_whole(fresh);
  EXPECT_EQ(harness_.read(*client_, clean, kHost), 3u);
}

TEST_F(Former, WhatAGpuHoldsStaysThereWhereMemoryHasNoRoomForIt) {
  Options options = three_tiers(2 * kMiB, 2 * kMiB);
  options.former_at_work = true;
  Harness harness(options);
  const auto& client = *harness.open();
  std::vector<Handle> handles;
  for (std::uint64_t i = 0; i < 5; ++i) handles.push_back(harness.create(client, "t" + std::to_string(i), kMiB));
  for (std::uint64_t i = 0; i < 4; ++i) harness.write(client, handles[i], 10 * (i + 1), i < 2 ? kHost : kDevice);
  const RequestId patient = harness.send(client.id, Acquire{kDevice, shm::Mode::kOverwrite, {handles[4]}});
  harness.settle();
  EXPECT_FALSE(harness.answered(patient));
  for (std::uint64_t i = 0; i < 4; ++i)
    EXPECT_EQ(harness.read(client, handles[i], i < 2 ? kHost : kDevice), 10 * (i + 1));
  harness.end_former([] { return true; });
  harness.settle();
  EXPECT_TRUE(harness.reply(patient).has_value());
}

TEST_F(Former, ATensorThatGoesMeanwhileKeepsWhatMayBeWrittenTo) {
  const Handle read = being_read("read", 3);
  die();
  ASSERT_TRUE(harness_.ask(client_->id, DeleteTensors{{read}}));
  harness_.create(*client_, "read", kMiB);  // the name is free
  EXPECT_EQ(harness_.status().tiers[0].used_bytes, kMiB);
  EXPECT_EQ(fill_memory().size(), kMemoryMib - 1);
  die();
  EXPECT_EQ(harness_.status().tiers[0].used_bytes, kMemoryMib * kMiB);
  end_former();
  EXPECT_EQ(harness_.status().tiers[0].used_bytes, (kMemoryMib - 1) * kMiB);
}

TEST_F(Former, ASessionEndsWithoutWaitingForIt) {
  being_read("read", 3);
  die();
  harness_.engine->session_died(harness_.now, client_->id);
  harness_.drain();
  EXPECT_TRUE(client_->gone);
  EXPECT_EQ(harness_.status().tiers[1].used_bytes, 0u);
  land();
  end_former();
}

// The homes of what is gone may be written by the former daemon still: nothing is written there before.
TEST_F(Former, AWriteOfItLandsInNobodysContent) {
  const Handle out = written("out", 3);
  harness_.send(client_->id, Move{shm::kPlaceBlock, {out}});
  ASSERT_EQ(harness_.transfers.size(), 1u);
  die();
  EXPECT_EQ(harness_.read(*client_, out, kHost), 3u);
  ASSERT_TRUE(harness_.ask(client_->id, DeleteTensors{{out}}));
  const Handle next = written("next", 4);
  const RequestId patient = harness_.send(client_->id, Move{shm::kPlaceBlock, {next}});
  land();
  end_former();
  EXPECT_TRUE(harness_.reply(patient).has_value());
  EXPECT_EQ(harness_.read(*client_, next, kHost), 4u);
}

TEST_F(Former, AnEngineThatBeginsAfreshWaitsToo) {
  Options options = memory_and_block();
  options.former_at_work = true;
  Harness fresh(options);
  const auto& client = *fresh.open();
  const Handle handle = fresh.create(client, "a", kMiB);
  fresh.write(client, handle, 5, kHost);
  const RequestId patient = fresh.send(client.id, Move{shm::kPlaceBlock, {handle}});
  EXPECT_FALSE(fresh.answered(patient));
  fresh.end_former([] { return true; });
  fresh.settle();
  EXPECT_TRUE(fresh.reply(patient).has_value());
  fresh.end_former([] { return true; });  // said twice, it is nothing
  EXPECT_EQ(fresh.read(client, handle, kHost), 5u);
}

TEST_F(Former, WithoutABlockTierThereIsNothingToWaitFor) {
  Options options;
  options.tiers = {tier_of("memory", tier::Kind::kMemory, kMemoryMib * kMiB)};
  options.former_at_work = true;
  Harness fresh(options);
  const auto& client = *fresh.open();
  const Handle handle = fresh.create(client, "a", kMiB);
  fresh.write(client, handle, 5, kHost);
  EXPECT_EQ(fresh.read(client, handle, kHost), 5u);
}

}  // namespace
}  // namespace terrace::engine
