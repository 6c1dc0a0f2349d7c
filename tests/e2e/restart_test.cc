// SPDX-License-Identifier: Apache-2.0
// Shows that a daemon that dies, at any moment, is missed by nobody: under `terraced supervise` its successor has every
// tensor, lease and byte, trainers go on without knowing, and what they had asked for is done once.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <random>
#include <thread>

#include "e2e/terraced.h"

namespace terrace::e2e {
namespace {

// Shows what the daemons said, if the test failed.
struct Said {
  const Terraced& terraced;
  ~Said() {
    if (::testing::Test::HasFailure()) std::cout << terraced.log();
  }
};

void write(Client& client, const Tensor& tensor, std::uint64_t version, Place place = Place::host()) {
  Result<Lease> lease = client.acquire(tensor, {.place = place, .mode = Mode::kOverwrite});
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  fill(lease->writable_bytes(), tensor.handle(), version);
  ASSERT_TRUE(lease->release().has_value());
}

void check(Client& client, const Tensor& tensor, std::uint64_t version, Place place = Place::host()) {
  const Result<Lease> lease = client.acquire(tensor, {.place = place});
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  EXPECT_EQ(first_difference(lease->bytes(), tensor.handle(), version), lease->bytes().size()) << tensor.name();
}

class Restart : public ::testing::TestWithParam<int> {};

TEST_P(Restart, LeasesAndBytesOutliveTheDaemon) {
  const Terraced terraced({.supervised = true});
  const Said said_at_the_end{terraced};
  Client client = terraced.connect();
  std::vector<Tensor> tensors;
  for (int i = 0; i < 40; ++i) {
    const Result<Tensor> made = client.create({.name = "t" + std::to_string(i), .bytes = kMiB + 17});
    ASSERT_TRUE(made.has_value()) << made.error().message;
    tensors.push_back(*made);
    write(client, tensors.back(), 1, i % 3 == 0 ? Place::device(0) : Place::host());
  }
  Result<Lease> held = client.acquire(tensors[0], {.mode = Mode::kWrite});
  ASSERT_TRUE(held.has_value()) << held.error().message;
  Result<Lease> read = client.acquire(tensors[1]);
  ASSERT_TRUE(read.has_value()) << read.error().message;

  ASSERT_TRUE(terraced.replace(GetParam()));
  EXPECT_EQ(first_difference(read->bytes(), tensors[1].handle(), 1), read->bytes().size()) << "while it is away";
  fill(held->writable_bytes(), tensors[0].handle(), 2);
  ASSERT_TRUE(held->release().has_value());
  ASSERT_TRUE(read->release().has_value());

  check(client, tensors[0], 2);
  for (std::size_t i = 1; i < tensors.size(); ++i) check(client, tensors[i], 1, Place::device(0));
  EXPECT_EQ(client.reconnects(), 1u);
  EXPECT_FALSE(client.create({.name = "t3", .bytes = 5}).has_value()) << "the catalog has the name";
  ASSERT_TRUE(client.destroy({&tensors[3], 1}).has_value());
  EXPECT_TRUE(client.create({.name = "t3", .bytes = 5}).has_value());
  EXPECT_TRUE(terraced.serves_on());
}

INSTANTIATE_TEST_SUITE_P(Signals, Restart, ::testing::Values(SIGKILL, SIGTERM));

// Leased memory whose pages lie apart is mapped by the successor as it was.
TEST_P(Restart, SeamsOutliveTheDaemon) {
  const Terraced terraced({.memory_mib = 8, .supervised = true});
  const Said said_at_the_end{terraced};
  Client client = terraced.connect({.guarantees = {{Place::host(), 8 * kMiB}}});
  std::vector<Lease> eighths;
  for (int i = 0; i < 64; ++i) {
    const Tensor made = client.create({.name = "t" + std::to_string(i), .bytes = kMiB / 8}).value();
    Result<Lease> lease = client.acquire(made, {.mode = Mode::kOverwrite});
    ASSERT_TRUE(lease.has_value()) << lease.error().message;
    eighths.push_back(std::move(*lease));
  }
  std::ranges::sort(eighths, {}, [](const Lease& lease) { return lease.bytes().data(); });
  for (std::size_t i = 0; i < eighths.size(); i += 2) ASSERT_TRUE(eighths[i].release().has_value());
  const Tensor large = client.create({.name = "large", .bytes = 3 * kMiB}).value();
  Result<Lease> held = client.acquire(large, {.mode = Mode::kOverwrite});
  ASSERT_TRUE(held.has_value()) << held.error().message;
  const auto stitched = [&] { return terraced.status()["tiers"][1]["stitched_bytes"].dump(); };
  EXPECT_NE(stitched().find("3145728"), std::string::npos) << stitched();
  fill(held->writable_bytes(), large.handle(), 1);

  ASSERT_TRUE(terraced.replace(GetParam()));
  EXPECT_EQ(first_difference(held->bytes(), large.handle(), 1), held->bytes().size()) << "while it is away";
  fill(held->writable_bytes(), large.handle(), 2);
  ASSERT_TRUE(held->release().has_value());
  ASSERT_TRUE(client.evict({&large, 1}).has_value());  // the successor writes down what it sees there
  check(client, large, 2);
  const Tensor other = client.create({.name = "other", .bytes = 4 * kMiB}).value();
  const Result<Lease> rest = client.acquire(other, {.mode = Mode::kOverwrite});
  EXPECT_TRUE(rest.has_value()) << rest.error().message;
}

TEST(Restarts, WhatIsAbandonedMeanwhileIsTorn) {
  const Terraced terraced({.supervised = true});
  const Said said_at_the_end{terraced};
  Client client = terraced.connect();
  std::vector<Tensor> tensors;
  std::vector<Lease> leases;
  for (int i = 0; i < 2; ++i) {
    tensors.push_back(client.create({.name = "t" + std::to_string(i), .bytes = kMiB}).value());
    write(client, tensors[static_cast<std::size_t>(i)], 1);
    leases.push_back(client.acquire(tensors.back(), {.mode = Mode::kOverwrite}).value());
  }
  ASSERT_TRUE(leases[0].abandon().has_value());
  ASSERT_EQ(::kill(terraced.daemon(), SIGSTOP), 0);
  ASSERT_TRUE(leases[1].abandon().has_value()) << "asks nobody";
  ASSERT_TRUE(terraced.replace(SIGKILL));
  for (const Tensor& tensor : tensors) {
    for (const Mode mode : {Mode::kRead, Mode::kWrite}) {
      const Result<Lease> refused = client.acquire(tensor, {.mode = mode});
      ASSERT_FALSE(refused.has_value());
      EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
      EXPECT_NE(refused.error().message.find("is torn"), std::string::npos) << refused.error().message;
    }
    write(client, tensor, 2);
    check(client, tensor, 2);
  }
}

// One trainer: works on tensors of its own until `stop`; every operation succeeds, every byte is right.
void work(Client client, unsigned seed, const std::atomic<bool>& stop, std::atomic<std::uint64_t>& done) {
  std::mt19937 random(seed);
  struct Known {
    Tensor tensor;
    std::uint64_t version = 0;
  };
  std::vector<Known> known;
  std::uint64_t version = 0;
  int named = 0;
  while (!stop && !::testing::Test::HasFailure()) {
    const auto dice = random() % 10;
    const Place place = random() % 2 == 0 ? Place::host() : Place::device(0);
    if (known.size() < 16 || (dice == 0 && known.size() < 24)) {
      const Result<Tensor> made =
          client.create({.name = "n" + std::to_string(++named), .bytes = 1 + random() % (kMiB / 2)});
      ASSERT_TRUE(made.has_value()) << made.error().message;
      known.push_back({*made, ++version});
      write(client, *made, version, place);
    } else if (Known& one = known[random() % known.size()]; dice == 1) {
      const Result<void> gone = client.destroy({&one.tensor, 1});
      ASSERT_TRUE(gone.has_value()) << gone.error().message;
      one = std::move(known.back());
      known.pop_back();
    } else if (dice == 2) {
      const Result<void> out = client.swap_out({&one.tensor, 1});
      ASSERT_TRUE(out.has_value()) << out.error().message;
    } else if (dice < 6) {
      write(client, one.tensor, one.version = ++version, place);
    } else {
      check(client, one.tensor, one.version, place);
    }
    ++done;
  }
  for (const Known& one : known) check(client, one.tensor, one.version);
  std::cout << client.reconnects() << " reconnects\n";
}

TEST(Restarts, ManyInTheMidstOfWork) {
  constexpr int kKills = 25;
  const unsigned seed = std::random_device()();
  std::cout << "seed " << seed << '\n';
  const Terraced terraced({.supervised = true});
  const Said said_at_the_end{terraced};
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> done = 0;
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < 2; ++i) {
    workers.emplace_back([&, i, client = terraced.connect({.label = "worker"})]() mutable {
      work(std::move(client), seed + i, stop, done);
    });
  }
  std::mt19937 random(seed);
  for (int kill = 0; kill < kKills && !HasFailure(); ++kill) {
    const std::uint64_t until = done + random() % 40;  // now and then while it comes back
    EXPECT_TRUE(eventually([&] { return done >= until || HasFailure(); }));
    EXPECT_TRUE(eventually([&] { return terraced.replace(SIGKILL); }));
  }
  const std::uint64_t until = done + 100;
  EXPECT_TRUE(eventually([&] { return done >= until || HasFailure(); }));
  stop = true;
  workers.clear();
  EXPECT_TRUE(terraced.serves_on());
}

TEST(Restarts, ATrainerThatDiedMeanwhileLeavesNothing) {
  const Terraced terraced({.supervised = true});
  const Said said_at_the_end{terraced};
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  Process trainer([&] {
    Result<Client> client = Client::connect({.socket = terraced.data_socket()});
    const Result<Tensor> tensor =
        client ? client->create({.name = "held", .bytes = kMiB}) : std::unexpected(client.error());
    const Result<Lease> lease =
        tensor ? client->acquire(*tensor, {.mode = Mode::kOverwrite}) : std::unexpected(tensor.error());
    if (!lease || ::write(ready[1], "x", 1) != 1) return 1;
    ::pause();
    return 2;
  });
  char said = 0;
  ASSERT_EQ(::read(ready[0], &said, 1), 1);
  const pid_t before = terraced.daemon();
  ::kill(trainer.pid(), SIGKILL);
  ::kill(before, SIGKILL);
  ASSERT_TRUE(eventually([&] { return terraced.daemon() != 0 && terraced.daemon() != before; }));
  trainer.wait();
  ASSERT_TRUE(eventually([&] { return terraced.serves_on(); }));
  EXPECT_TRUE(eventually([&] { return terraced.status()["sessions"].empty(); })) << terraced.status().dump();
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace terrace::e2e
