// SPDX-License-Identifier: Apache-2.0
// Shows what the engine says of itself and of what there is: in pages where it is much, and counted where somebody else
// says what happened.
#include <gmock/gmock.h>

#include <cmath>

#include "unit/engine/harness.h"

namespace terrace::engine {
namespace {

TEST(Status, IsARequestToo) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  harness.create(client, "a", kMiB);
  const auto asked = harness.ask(SessionId{}, GetStatus{});
  ASSERT_TRUE(asked);
  const Status& status = std::get<Status>(*asked);
  ASSERT_EQ(status.sessions.size(), 1u);
  EXPECT_EQ(status.sessions[0].session, client.id);
  EXPECT_EQ(status.sessions[0].tensor_bytes, kMiB);
  EXPECT_EQ(status.tiers.at(2).used_bytes, kMiB);
}

TEST(Status, OfDurationsHasABucketForTheLongest) {
  Histogram histogram;
  histogram.record(Duration(1));
  histogram.record(std::chrono::hours(24 * 365));
  EXPECT_EQ(histogram.counts.front(), 1u);
  EXPECT_EQ(histogram.counts.back(), 1u);
  const std::size_t last = histogram.counts.size() - 1;
  EXPECT_TRUE(std::isinf(Histogram::upper_bound_seconds(last)));
  EXPECT_GT(Histogram::upper_bound_seconds(last - 1), Histogram::upper_bound_seconds(last - 2));
}

TEST(Status, ListsPageByPage) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  for (int i = 0; i < 7; ++i) harness.create(client, std::to_string(i), kPageBytes);
  std::vector<std::string> names;
  std::uint32_t pages = 0;
  ListTensors list;
  list.page_bytes_max = 2 * sizeof(TensorInfo);
  do {
    const auto page = harness.ask(client.id, list);
    ASSERT_TRUE(page);
    const auto& listed = std::get<TensorList>(*page);
    ASSERT_EQ(listed.tensors.size(), pages < 3 ? 2u : 1u);
    for (const TensorInfo& info : listed.tensors) names.push_back(info.spec.name);
    list.first_slot = listed.next_slot;
    ASSERT_LT(++pages, 8u);
  } while (list.first_slot != 0);
  EXPECT_THAT(names, ::testing::ElementsAre("0", "1", "2", "3", "4", "5", "6"));
  list.first_slot = UINT32_MAX;
  EXPECT_TRUE(std::get<TensorList>(*harness.ask(client.id, list)).tensors.empty());
}

TEST(Status, OfALongLabelIsCutInTheCatalogAlone) {
  Harness harness(three_tiers());
  OpenSession open;
  open.label.assign(100, 'x');
  ASSERT_NE(harness.open(open), nullptr);
  EXPECT_EQ(harness.status().sessions[0].label, open.label);
  harness.restart([] { return true; });
  EXPECT_EQ(harness.status().sessions[0].label, std::string(63, 'x'));
}

TEST(Status, CountsAccessesOfWhatIsNotThereForThePlaceAlone) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle away = harness.create(client, "away", kMiB);
  const Handle gone = harness.create(client, "gone", kMiB);
  const Handle here = harness.create(client, "here", kMiB);
  harness.write(client, here, 1, kHost);
  ASSERT_TRUE(harness.ask(client.id, DeleteTensors{{gone}}));
  const auto hits = [&](std::size_t place) { return harness.status().places[place].hits; };
  const std::uint64_t device = hits(0);
  const std::uint64_t host = hits(1);
  const auto read = [](Handle tensor) { return Access{tensor.slot, shm::Mode::kRead}; };
  const std::vector<Access> log{read(away), read(gone), read(here), read(here), read(here)};
  harness.engine->accessed(harness.now, client.id, log, 2);
  EXPECT_EQ(hits(0), device);
  EXPECT_EQ(hits(1), host + 2) << "no more than there were, whatever the log names";
}

TEST(Status, OfAFailureOfNoTierIsTheLinksAlone) {
  Harness harness(three_tiers());
  const auto& client = *harness.open();
  const Handle a = harness.create(client, "a", kMiB);
  harness.write(client, a, 1);
  const RequestId moves = harness.send(client.id, Move{kHost, {a}});
  harness.complete_orders();
  ASSERT_EQ(harness.transfers.size(), 1u);
  const mover::Link link = harness.transfers[0].link;
  harness.complete_transfer(0, Error{ErrorCode::kInternal, "stream failed", 0}, TierId{99});
  EXPECT_EQ(harness.reply(moves).error().code, ErrorCode::kInternal);
  const Status status = harness.status();
  for (const TierStatus& tier : status.tiers) EXPECT_EQ(tier.io_errors + tier.checksum_failures, 0u) << tier.name;
  for (const LinkStatus& counted : status.links) EXPECT_EQ(counted.failures, counted.link == link ? 1u : 0u);
  EXPECT_EQ(harness.read(client, a), 1u);
}

}  // namespace
}  // namespace terrace::engine
