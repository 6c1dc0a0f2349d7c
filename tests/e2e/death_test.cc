// SPDX-License-Identifier: Apache-2.0
// Shows what a trainer that is killed leaves: nothing. And what a daemon that is stopped leaves its clients.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <future>

#include "e2e/terraced.h"

namespace terrace::e2e {
namespace {

using namespace std::chrono_literals;

// Leases all it can of memory and device, says so through `ready`, and holds on. Its exit status, if it ends.
int hold_everything(const std::string& socket, int ready) {
  Result<Client> client = Client::connect(
      {.socket = socket, .guarantees = {{.place = Place::host(), .bytes = 16 * kMiB}}, .label = "the one that dies"});
  if (!client) return 1;
  const Result<Tensor> written = client->create({.name = "written", .bytes = 6 * kMiB});
  const Result<Tensor> other = client->create({.name = "other", .bytes = 4 * kMiB});
  if (!written || !other) return 2;
  const Result<Lease> write = client->acquire(*written, {.mode = Mode::kOverwrite});
  const Result<Lease> device = client->acquire(*other, {.place = Place::device(0), .mode = Mode::kWrite});
  if (!write || !device) return 3;
  fill(write->writable_bytes(), 1, 1);
  if (::write(ready, "x", 1) != 1) return 4;
  ::pause();
  return 5;
}

TEST(Death, OfATrainerMidLeaseReleasesEverything) {
  const Terraced terraced;
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  Process trainer([&] { return hold_everything(terraced.data_socket(), ready[1]); });
  char said = 0;
  ::close(ready[1]);
  ASSERT_EQ(::read(ready[0], &said, 1), 1) << terraced.log();
  ::close(ready[0]);
  const nlohmann::json before = terraced.status();
  ASSERT_EQ(before["sessions"].size(), 1u) << before["sessions"];
  EXPECT_EQ(before["sessions"][0]["pid"], trainer.pid());
  EXPECT_EQ(before["sessions"][0]["leases"], 2);
  EXPECT_EQ(before["sessions"][0]["leased_bytes"], 10 * kMiB);

  // A second trainer that wants all memory guaranteed comes in when the first one's is free, and not before.
  auto next = std::async(std::launch::async, [&] {
    Result<Client> client = Client::connect(
        {.socket = terraced.data_socket(), .guarantees = {{.place = Place::host(), .bytes = 16 * kMiB}}});
    return std::pair(client.has_value() ? std::string() : client.error().message, std::chrono::steady_clock::now());
  });
  ASSERT_EQ(next.wait_for(100ms), std::future_status::timeout) << "memory was promised twice";
  const auto killed = std::chrono::steady_clock::now();
  trainer.kill();
  const auto [error, opened] = next.get();
  EXPECT_EQ(error, "");
  std::printf("a killed trainer's memory was another's after %.1f ms\n",
              std::chrono::duration<double, std::milli>(opened - killed).count());
  EXPECT_EQ(trainer.wait(), 200 + SIGKILL);
  EXPECT_TRUE(eventually([&] {
    const nlohmann::json after = terraced.status();
    bool nothing = after["sessions"].empty();
    for (const auto& tier : after["tiers"])
      nothing = nothing && tier["used_bytes"] == 0 && tier["guaranteed_bytes"] == 0;
    return nothing;
  })) << terraced.status().dump(2);
  EXPECT_TRUE(terraced.serves_on());
}

TEST(Death, OfManyTrainersAtAnyMomentLeavesNothing) {
  const Terraced terraced({.block_mib = 256});  // homes of those that are still being wound up, too
  for (int life = 0; life < 12; ++life) {
    std::array<int, 2> beat{};
    ASSERT_EQ(::pipe(beat.data()), 0);
    Process trainer([&] {
      Result<Client> client = Client::connect({.socket = terraced.data_socket()});
      if (!client) return 1;
      std::vector<TensorSpec> specs;
      for (int i = 0; i < 16; ++i) specs.push_back({.name = "t" + std::to_string(i), .bytes = 2 * kMiB});
      const Result<std::vector<Tensor>> tensors = client->create(specs);
      if (!tensors) return 2;
      for (std::size_t i = 0;; i = (i + 1) % tensors->size()) {
        const Result<Lease> lease = client->acquire((*tensors)[i], {.mode = Mode::kOverwrite});
        if (!lease) return 3;
        fill(lease->writable_bytes().first(4096), i, 1);
        if (::write(beat[1], "x", 1) != 1) return 4;
      }
    });
    ::close(beat[1]);
    char said = 0;
    for (int beats = 0; beats < 1 + life * 3; ++beats) ASSERT_EQ(::read(beat[0], &said, 1), 1) << trainer.wait();
    trainer.kill();
    EXPECT_EQ(trainer.wait(), 200 + SIGKILL);
    ::close(beat[0]);
  }
  EXPECT_TRUE(eventually([&] { return terraced.status()["sessions"].empty(); }));
  const nlohmann::json status = terraced.status();
  for (const auto& tier : status["tiers"]) EXPECT_EQ(tier["used_bytes"], 0) << tier;
  EXPECT_TRUE(terraced.serves_on());
}

TEST(Death, OfTheDaemonLeavesLeasesAndSaysSo) {
  Terraced terraced;
  Client client =
      Client::connect({.socket = terraced.data_socket(), .reconnect_timeout = std::chrono::seconds(0)}).value();
  const Tensor tensor = client.create({.name = "t", .bytes = kMiB}).value();
  const Tensor absent = client.create({.name = "absent", .bytes = kMiB}).value();
  const Lease lease = client.acquire(tensor, {.mode = Mode::kOverwrite}).value();
  fill(lease.writable_bytes(), 1, 1);
  EXPECT_EQ(terraced.stop(), 0) << terraced.log();
  EXPECT_EQ(first_difference(lease.bytes(), 1, 1), kMiB);
  const Result<Lease> miss = client.acquire(absent, {.mode = Mode::kOverwrite});
  ASSERT_FALSE(miss.has_value());
  EXPECT_EQ(miss.error().code, ErrorCode::kUnavailable) << miss.error().message;
  const Result<Client> again = Client::connect({.socket = terraced.data_socket()});
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code, ErrorCode::kUnavailable);
}

TEST(Death, OfTheClientObjectLeavesItsLeases) {
  const Terraced terraced;
  std::optional<Client> client = terraced.connect();
  const Tensor tensor = client->create({.name = "t", .bytes = kMiB}).value();
  std::optional<Lease> lease = std::move(*client->acquire(tensor, {.mode = Mode::kOverwrite}));
  fill(lease->writable_bytes(), 1, 1);
  client.reset();
  EXPECT_EQ(terraced.status()["sessions"].size(), 1u);
  EXPECT_EQ(first_difference(lease->bytes(), 1, 1), kMiB);
  lease.reset();
  EXPECT_TRUE(eventually([&] { return terraced.status()["sessions"].empty(); }));
}

}  // namespace
}  // namespace terrace::e2e
