// SPDX-License-Identifier: Apache-2.0
// Shows that bytes are the same after trips through every tier: forced ones, those that eviction makes, several at once
// from several processes, in sets, with hints, pins and overwrites among them.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>

#include "e2e/terraced.h"

namespace terrace::e2e {
namespace {

using namespace std::chrono_literals;

// A failed call's message, for a child process that can only exit.
#define REQUIRE(result)                                                                  \
  do {                                                                                   \
    if (const auto& required = (result); !required) {                                    \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, required.error().message.c_str()); \
      return 1;                                                                          \
    }                                                                                    \
  } while (false)

std::uint64_t bytes_over(const nlohmann::json& status, const std::string& link) {
  for (const auto& each : status["links"]) {
    if (each["name"] == link) return each["bytes"].get<std::uint64_t>();
  }
  ADD_FAILURE() << "no link " << link << " in " << status["links"];
  return 0;
}

TEST(Trips, ThroughEveryTierAndBackKeepTheBytes) {
  const Terraced terraced;
  Client client = terraced.connect();
  const Tensor tensor = client.create({.name = "traveller", .dtype = DType::kFloat32, .shape = {1000, 700}}).value();
  {
    const Lease write = client.acquire(tensor, {.mode = Mode::kOverwrite}).value();
    fill(write.writable_bytes(), 1, 1);
  }
  for (int trip = 0; trip < 3; ++trip) {
    for (const Place place : {Place::host(), Place::device(0)}) {
      ASSERT_TRUE(client.swap_out({&tensor, 1}).has_value());
      const Result<void> moved = client.swap_in({&tensor, 1}, place);
      ASSERT_TRUE(moved.has_value()) << moved.error().message;
      const Result<Lease> read = client.acquire(tensor, {.place = place});
      ASSERT_TRUE(read.has_value()) << read.error().message;
      ASSERT_EQ(read->place(), place);
      ASSERT_EQ(first_difference(read->bytes(), 1, 1), tensor.bytes()) << place.name();
    }
  }
  const nlohmann::json status = terraced.status();
  EXPECT_GE(bytes_over(status, "block_write"), tensor.bytes());
  EXPECT_GE(bytes_over(status, "block_read"), tensor.bytes());
}

TEST(Trips, ThatEvictionMakesKeepTheBytes) {
  const Terraced terraced;
  Client client = terraced.connect();
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 24; ++i) {  // 36 MiB on average, in 16 MiB of memory and 8 MiB of device
    specs.push_back({.name = "t" + std::to_string(i), .bytes = 1 + random() % (3 * kMiB)});
  }
  const std::vector<Tensor> tensors = client.create(specs).value();
  std::vector<std::uint64_t> versions(tensors.size(), 0);
  for (int round = 0; round < 300; ++round) {
    const std::size_t which = random() % tensors.size();
    const Tensor& tensor = tensors[which];
    const Place place = random() % 3 == 0 ? Place::device(0) : Place::host();
    const bool overwrites = versions[which] == 0 || random() % 4 == 0;
    const Mode mode = overwrites ? Mode::kOverwrite : random() % 3 == 0 ? Mode::kWrite : Mode::kRead;
    const Result<Lease> lease = client.acquire(tensor, {.place = place, .mode = mode});
    ASSERT_TRUE(lease.has_value()) << "seed " << seed << " round " << round << ": " << lease.error().message;
    if (mode != Mode::kOverwrite) {
      ASSERT_EQ(first_difference(lease->bytes(), which, versions[which]), tensor.bytes())
          << "seed " << seed << " round " << round << " at " << place.name();
    }
    if (mode != Mode::kRead) fill(lease->writable_bytes(), which, ++versions[which]);
    if (random() % 8 == 0) {
      ASSERT_TRUE(client.mark_step().has_value());
    }
    if (random() % 8 == 0) {
      const Tensor& other = tensors[random() % tensors.size()];
      const Result<void> hinted = random() % 2 == 0 ? client.prefetch({&other, 1}) : client.evict({&other, 1});
      ASSERT_TRUE(hinted.has_value()) << hinted.error().message;
    }
  }
}

TEST(Trips, OfSetsKeepTheBytes) {
  const Terraced terraced;
  Client client = terraced.connect();
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 40; ++i) specs.push_back({.name = "t" + std::to_string(i), .bytes = kMiB});
  const std::vector<Tensor> tensors = client.create(specs).value();
  constexpr std::size_t kSet = 4;
  for (int pass = 0; pass < 3; ++pass) {
    for (std::size_t first = 0; first < tensors.size(); first += kSet) {
      const auto set = std::span(tensors).subspan(first, kSet);
      const Result<std::vector<Lease>> leases =
          client.acquire(set, {.mode = pass == 0 ? Mode::kOverwrite : Mode::kWrite});
      ASSERT_TRUE(leases.has_value()) << leases.error().message;
      for (std::size_t i = 0; i < kSet; ++i) {
        const Lease& lease = (*leases)[i];
        if (pass != 0) {
          ASSERT_EQ(first_difference(lease.bytes(), first + i, static_cast<std::uint64_t>(pass)), kMiB);
        }
        fill(lease.writable_bytes(), first + i, static_cast<std::uint64_t>(pass) + 1);
      }
      std::vector<Pending<std::vector<Lease>>> ahead;
      ahead.push_back(client.acquire_async(set, {.mode = Mode::kRead}));
      ASSERT_TRUE(ahead.front().wait(60s).has_value());
    }
  }
}

// One trainer: its tensors pass the tiers many times beside the others'. Its exit status.
int train(const Terraced& terraced, std::uint64_t rank) {
  Result<Client> client = Client::connect(
      {.socket = terraced.data_socket(),
       .guarantees = {{.place = Place::host(), .bytes = 4 * kMiB}, {.place = Place::device(0), .bytes = 2 * kMiB}},
       .label = "rank " + std::to_string(rank)});
  REQUIRE(client);
  std::mt19937_64 random(rank);
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 12; ++i) specs.push_back({.name = "t" + std::to_string(i), .bytes = kMiB});
  const Result<std::vector<Tensor>> tensors = client->create(specs);
  REQUIRE(tensors);
  std::vector<std::uint64_t> versions(tensors->size(), 0);
  for (int round = 0; round < 150; ++round) {
    const std::size_t which = random() % tensors->size();
    const Mode mode = versions[which] == 0 ? Mode::kOverwrite : random() % 2 == 0 ? Mode::kWrite : Mode::kRead;
    const Place place = random() % 3 == 0 ? Place::device(0) : Place::host();
    const Result<Lease> lease = client->acquire((*tensors)[which], {.place = place, .mode = mode});
    REQUIRE(lease);
    if (mode != Mode::kOverwrite && first_difference(lease->bytes(), rank * 100 + which, versions[which]) != kMiB) {
      std::fprintf(stderr, "rank %lu round %d: wrong bytes\n", static_cast<unsigned long>(rank), round);
      return 2;
    }
    if (mode != Mode::kRead) fill(lease->writable_bytes(), rank * 100 + which, ++versions[which]);
  }
  return 0;
}

TEST(Trips, OfSeveralProcessesKeepTheirBytesApart) {
  const Terraced terraced;
  std::vector<std::unique_ptr<Process>> ranks;
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<Process>([&terraced, rank] { return train(terraced, rank); }));
  }
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait(), 0) << terraced.log();
  EXPECT_TRUE(terraced.serves_on());
}

TEST(Trips, WithoutABlockTierEndInMemory) {
  const Terraced terraced({.block_mib = 0});
  Client client = terraced.connect();
  const Tensor tensor = client.create({.name = "t", .bytes = 3 * kMiB}).value();
  fill(client.acquire(tensor, {.place = Place::device(0), .mode = Mode::kOverwrite})->writable_bytes(), 1, 1);
  const Result<void> moved = client.swap_out({&tensor, 1}, Place::host());
  ASSERT_TRUE(moved.has_value()) << moved.error().message;
  const Result<Lease> read = client.acquire(tensor);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(first_difference(read->bytes(), 1, 1), 3 * kMiB);
}

TEST(Trips, WithoutMemoryTiersOfTheDeviceAlone) {
  const Terraced terraced({.memory_mib = 0, .block_mib = 0});
  Client client = terraced.connect();
  const Tensor tensor = client.create({.name = "t", .bytes = kMiB}).value();
  fill(client.acquire(tensor, {.place = Place::device(0), .mode = Mode::kOverwrite})->writable_bytes(), 1, 1);
  const Result<Lease> read = client.acquire(tensor, {.place = Place::device(0)});
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(first_difference(read->bytes(), 1, 1), kMiB);
}

TEST(Trips, LeaveWhatIsPinnedWhereItIs) {
  const Terraced terraced;
  Client client = terraced.connect();
  const Tensor kept = client.create({.name = "kept", .bytes = 2 * kMiB}).value();
  fill(client.acquire(kept, {.mode = Mode::kOverwrite})->writable_bytes(), 1, 1);
  const Result<void> pinned = client.pin({&kept, 1});
  ASSERT_TRUE(pinned.has_value()) << pinned.error().message;
  const std::byte* address = client.acquire(kept)->bytes().data();
  for (int i = 0; i < 30; ++i) {
    const Tensor other = client.create({.name = "t" + std::to_string(i), .bytes = 2 * kMiB}).value();
    fill(client.acquire(other, {.mode = Mode::kOverwrite})->writable_bytes(), 2, 1);
  }
  EXPECT_EQ(client.acquire(kept)->bytes().data(), address);
  EXPECT_TRUE(client.unpin({&kept, 1}).has_value());
}

}  // namespace
}  // namespace terrace::e2e
