// SPDX-License-Identifier: Apache-2.0
// Shows that a trainer that is killed or stopped costs nobody else anything: what it held is the next one's at once,
// also where a forked child keeps its socket open or a transfer is under way, and nothing is left of it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <iostream>
#include <random>

#include "faults/cases.h"

namespace terrace::faults {
namespace {

using namespace std::chrono_literals;
using e2e::eventually;
using e2e::fill;
using e2e::first_difference;
using e2e::kMiB;
using e2e::Process;
using e2e::Terraced;

constexpr std::uint64_t kGreatestGuarantee = 12 * kMiB;  // of 16: two such do not fit
constexpr int kLeases = 1000;

ConnectOptions greedy(const std::string& socket) {
  return {.socket = socket, .guarantees = {{.place = Place::host(), .bytes = kGreatestGuarantee}}};
}

// Works until it is told to end: every operation succeeds, every byte is right. Its exit status.
int work(const std::string& socket, const Beacon& done, const Beacon& end) {
  Result<Client> client = Client::connect(
      {.socket = socket,
       .guarantees = {{.place = Place::host(), .bytes = 2 * kMiB}, {.place = Place::device(0), .bytes = 2 * kMiB}},
       .label = "bystander"});
  if (!client) return 1;
  const Result<Tensor> tensor = client->create({.name = "mine", .bytes = kMiB});
  if (!tensor) return 2;
  for (std::uint64_t version = 1; end.last() == '\0'; ++version) {
    const Place place = version % 2 == 0 ? Place::host() : Place::device(0);
    Result<Lease> lease = client->acquire(*tensor, {.place = place, .mode = Mode::kOverwrite});
    if (!lease) return 3;
    fill(lease->writable_bytes(), 1, version);
    if (!lease->release() || !client->swap_out({&*tensor, 1})) return 4;
    const Result<Lease> read = client->acquire(*tensor, {.place = place});
    if (!read || first_difference(read->bytes(), 1, version) != kMiB) return 5;
    if (!done.say('x')) return 6;
  }
  return 0;
}

// Holds a thousand leases, says so, and holds on. `forks`: with a child that has its socket and outlives it, whose
// process id comes through `child`.
int hold_a_thousand(const std::string& socket, bool forks, const Beacon& ready, int child) {
  Result<Client> client = Client::connect(greedy(socket));
  if (!client) return 1;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < kLeases; ++i) specs.push_back({.name = "t" + std::to_string(i), .bytes = 4000});
  const Result<std::vector<Tensor>> tensors = client->create(specs);
  if (!tensors) return 2;
  const Result<std::vector<Lease>> leases = client->acquire(*tensors, {.mode = Mode::kOverwrite});
  if (!leases) return 3;
  if (forks) {
    const pid_t heir = ::_Fork();  // past pthread_atfork, by which the library would close what it has
    if (heir == 0) {
      ::alarm(300);
      ::pause();
      ::_exit(0);
    }
    if (::write(child, &heir, sizeof heir) != sizeof heir) return 4;
  }
  if (!ready.say('x')) return 5;
  ::pause();
  return 6;
}

class Killed : public ::testing::TestWithParam<bool> {};

TEST_P(Killed, WithAThousandLeasesLeavesNothing) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // orphans are ours to wait for
  const bool forks = GetParam();
  const Terraced terraced;
  const Beacon done;
  const Beacon end;
  Process bystander([&] { return work(terraced.data_socket(), done, end); });
  ASSERT_EQ(done.hear(), 'x') << bystander.wait();
  std::vector<double> released;
  std::size_t descriptors = 0;
  const std::uint64_t deaths = times(5, 1000);
  for (std::uint64_t death = 0; death < deaths; ++death) {
    const Beacon ready;
    std::array<int, 2> child{};
    ASSERT_EQ(::pipe(child.data()), 0);
    Process trainer([&] { return hold_a_thousand(terraced.data_socket(), forks, ready, child[1]); });
    ASSERT_EQ(ready.hear(), 'x') << trainer.wait();
    pid_t heir = 0;
    if (forks) {
      ASSERT_EQ(::read(child[0], &heir, sizeof heir), sizeof heir);
    }
    ::close(child[0]);
    ::close(child[1]);
    if (death == 0) {
      std::uint64_t leases = 0;
      const nlohmann::json status = terraced.status();
      for (const auto& session : status["sessions"]) leases += session["leases"].get<std::uint64_t>();
      EXPECT_GE(leases, kLeases);
    }
    const auto killed = std::chrono::steady_clock::now();
    trainer.kill();
    const Result<Client> next = Client::connect(greedy(terraced.data_socket()));
    released.push_back(milliseconds_since(killed));
    ASSERT_TRUE(next.has_value()) << next.error().message;
    EXPECT_EQ(trainer.wait(), 200 + SIGKILL);
    if (forks) {
      ::kill(heir, SIGKILL);
      EXPECT_EQ(::waitpid(heir, nullptr, 0), heir);
    }
    if (death == 0) descriptors = descriptors_of(terraced.pid());  // with a session open, as below
    if (death + 1 == deaths) {
      EXPECT_TRUE(eventually([&] { return descriptors_of(terraced.pid()) <= descriptors; }))
          << descriptors_of(terraced.pid()) << " descriptors, " << descriptors << " after the first death";
    }
    ASSERT_EQ(done.hear(), 'x') << "the bystander goes on";
  }
  end.say('x');
  EXPECT_EQ(bystander.wait(), 0);
  EXPECT_TRUE(eventually([&] {
    const nlohmann::json status = terraced.status();
    return status["sessions"].empty() && used_bytes(status) == 0;
  })) << terraced.status().dump(2);
  figure(forks ? 2 : 1, std::to_string(kLeases) + " leases and their memory were the next one's after " +
                            spread(released) + ", over " + std::to_string(deaths) + " deaths; 0 bytes left");
}

INSTANTIATE_TEST_SUITE_P(Trainers, Killed, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "ItsChildHoldsTheSocket" : "Alone"; });

// Swaps out all it has and writes it again, over and over; says 's' before and 'd' after each swap.
int swap(const std::string& socket, const Beacon& where) {
  Result<Client> client = Client::connect({.socket = socket});
  if (!client) return 1;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 6; ++i) specs.push_back({.name = "t" + std::to_string(i), .bytes = kMiB});
  const Result<std::vector<Tensor>> tensors = client->create(specs);
  if (!tensors) return 2;
  while (true) {
    {
      const Result<std::vector<Lease>> leases =
          client->acquire(*tensors, {.place = Place::device(0), .mode = Mode::kWrite});
      if (!leases) return 3;
    }
    if (!where.say('s') || !client->swap_out(*tensors) || !where.say('d')) return 4;
  }
}

TEST(Killed, MidTransferLeavesNothing) {
  const unsigned seed = std::random_device()();
  std::cout << "seed " << seed << '\n';
  std::mt19937 random(seed);
  const Terraced terraced({.block_mib = 128});  // homes of those that are still being wound up, too
  std::size_t descriptors = 0;
  std::uint64_t inside = 0;
  const std::uint64_t deaths = times(20, 1000);
  for (std::uint64_t death = 0; death < deaths; ++death) {
    const Beacon where;
    Process trainer([&] { return swap(terraced.data_socket(), where); });
    for (auto swaps = random() % 3; swaps > 0; --swaps)
      while (where.hear() != 'd') ASSERT_FALSE(HasFailure());
    while (where.hear() != 's') ASSERT_FALSE(HasFailure());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    trainer.kill();
    EXPECT_EQ(trainer.wait(), 200 + SIGKILL);
    inside += where.last() != 'd' ? 1 : 0;
    ASSERT_TRUE(eventually([&] { return terraced.status()["sessions"].empty(); })) << terraced.status().dump(2);
    const nlohmann::json status = terraced.status();
    ASSERT_EQ(used_bytes(status), 0u) << status.dump(2);
    for (const auto& link : status["links"]) EXPECT_EQ(link["in_flight"], 0) << link;
    if (death == 0) descriptors = descriptors_of(terraced.pid());
  }
  EXPECT_GT(inside, 0u);
  EXPECT_TRUE(eventually([&] { return descriptors_of(terraced.pid()) <= descriptors; }));
  EXPECT_TRUE(terraced.serves_on());
  figure(3, std::to_string(deaths) + " deaths, " + std::to_string(inside) +
                " of them inside a swap of 6 MiB; 0 bytes left");
}

TEST(Stopped, ATrainerStallsNobodyElse) {
  const Terraced terraced;
  const Beacon stopped_done;
  const Beacon other_done;
  const Beacon end;
  Process stopped([&] { return work(terraced.data_socket(), stopped_done, end); });
  const Beacon other_end;
  Process other([&] { return work(terraced.data_socket(), other_done, other_end); });
  for (int i = 0; i < 5; ++i) ASSERT_EQ(stopped_done.hear(), 'x');
  ASSERT_EQ(::kill(stopped.pid(), SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(stopped.pid(), &status, WUNTRACED), stopped.pid());
  ASSERT_TRUE(WIFSTOPPED(status));
  stopped_done.last();
  other_done.last();
  const std::uint64_t operations = times(50, 20'000);
  for (std::uint64_t i = 0; i < operations; ++i) ASSERT_EQ(other_done.hear(), 'x') << "it waits for the stopped one";
  EXPECT_TRUE(terraced.serves_on()) << "for new ones too";
  EXPECT_EQ(stopped_done.last(), '\0');
  EXPECT_EQ(terraced.status()["sessions"].size(), 2u) << "and it keeps what it has";
  ASSERT_EQ(::kill(stopped.pid(), SIGCONT), 0);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(stopped_done.hear(), 'x') << "it goes on where it was";
  end.say('x');
  other_end.say('x');
  EXPECT_EQ(stopped.wait(), 0);
  EXPECT_EQ(other.wait(), 0);
  figure(4, std::to_string(operations) + " rounds of another trainer through all tiers while one was stopped");
}

}  // namespace
}  // namespace terrace::faults
