// SPDX-License-Identifier: Apache-2.0
// Shows that a daemon is replaced in place, by `terracectl upgrade`, while a trainer works; and that the program which
// would come next is asked first: where it could not go on, nothing is stopped.
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "e2e/terraced.h"

namespace terrace::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Writes, swaps out and reads back until told to stop; how often.
std::uint64_t work(Client& client, const Tensor& tensor, const std::atomic<bool>& stop,
                   std::atomic<std::uint64_t>& rounds) {
  while (!stop && !::testing::Test::HasFailure()) {
    const std::uint64_t version = rounds + 1;
    {
      const Result<Lease> lease = client.acquire(tensor, {.mode = Mode::kOverwrite});
      EXPECT_TRUE(lease.has_value()) << lease.error().message;
      if (!lease) break;
      fill(lease->writable_bytes(), tensor.handle(), version);
    }
    const Result<void> out = client.swap_out({&tensor, 1});
    EXPECT_TRUE(out.has_value()) << out.error().message;
    const Result<Lease> read = client.acquire(tensor, {.place = Place::device(0)});
    EXPECT_TRUE(read.has_value()) << read.error().message;
    if (!read) break;
    EXPECT_EQ(first_difference(read->bytes(), tensor.handle(), version), tensor.bytes());
    ++rounds;
  }
  return rounds;
}

TEST(Upgrade, WhileATrainerWorksIsMissedByNobody) {
  const Terraced terraced({.supervised = true});
  Client client = terraced.connect();
  const Tensor worked = client.create({.name = "worked", .bytes = kMiB}).value();
  const Tensor held = client.create({.name = "held", .bytes = kMiB}).value();
  Result<Lease> lease = client.acquire(held, {.mode = Mode::kOverwrite});
  ASSERT_TRUE(lease.has_value()) << lease.error().message;
  fill(lease->writable_bytes(), held.handle(), 7);
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> rounds = 0;
  std::jthread worker([&] { work(client, worked, stop, rounds); });
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t before = rounds;
    EXPECT_TRUE(eventually([&] { return rounds > before + 5 || HasFailure(); }));
    const pid_t old = terraced.daemon();
    const Terraced::Ended upgraded = terraced.administer("upgrade --json");
    EXPECT_EQ(upgraded.status, 0) << upgraded.said << terraced.log();
    EXPECT_NE(terraced.daemon(), old);
    EXPECT_EQ(nlohmann::json::parse(upgraded.said, nullptr, false)["process"], terraced.daemon()) << upgraded.said;
  }
  const std::uint64_t before = rounds;
  EXPECT_TRUE(eventually([&] { return rounds > before + 5 || HasFailure(); }));
  stop = true;
  worker.join();
  EXPECT_TRUE(lease->release().has_value()) << "it was held all the while";
  const Result<Lease> read = client.acquire(held);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(first_difference(read->bytes(), held.handle(), 7), held.bytes());
  EXPECT_EQ(client.reconnects(), 3u);
}

TEST(Upgrade, ToWhatCouldNotGoOnStopsNothing) {
  const Terraced terraced({.supervised = true});
  Client client = terraced.connect();
  const Tensor tensor = client.create({.name = "weights", .bytes = kMiB}).value();
  const pid_t before = terraced.daemon();
  std::ifstream file(terraced.configuration_file());
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string other = good;
    EXPECT_NE(other.find(from), std::string::npos);
    other.replace(other.find(from), from.size(), to);
    std::ofstream(terraced.configuration_file()) << other;
    const Terraced::Ended asked = terraced.administer("upgrade");
    EXPECT_EQ(asked.status, 1);
    EXPECT_EQ(terraced.daemon(), before);
    return asked.said;
  };
  EXPECT_THAT(refused("capacity = \"16MiB\"", "capacity = \"32MiB\""),
              AllOf(HasSubstr("could not go on"), HasSubstr("other tiers"), HasSubstr("tier 1 had 16777216 bytes")));
  EXPECT_THAT(refused("[limits]\n", "[limits]\nsessions_max = 3\n"), HasSubstr("limits.sessions_max"));
  EXPECT_THAT(refused("capacity", "capacities"), HasSubstr("tier[0].capacities"));
  std::ofstream(terraced.configuration_file()) << good;
  const Terraced::Ended checked = terraced.administer("upgrade --check");
  EXPECT_EQ(checked.status, 0) << checked.said;
  EXPECT_THAT(checked.said, HasSubstr("could go on; nothing was stopped"));
  EXPECT_EQ(terraced.daemon(), before);
  EXPECT_TRUE(client.acquire(tensor, {.mode = Mode::kOverwrite}).has_value());
  EXPECT_EQ(client.reconnects(), 0u);
}

TEST(Upgrade, WithNobodyToStartTheNextIsRefused) {
  const Terraced terraced;
  const Terraced::Ended asked = terraced.administer("upgrade");
  EXPECT_EQ(asked.status, 1);
  EXPECT_THAT(asked.said, HasSubstr("nobody would start the next daemon"));
  EXPECT_TRUE(terraced.serves_on());
}

}  // namespace
}  // namespace terrace::e2e
