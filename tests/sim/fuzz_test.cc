// SPDX-License-Identifier: Apache-2.0
// Shows that the laws hold over random trainers, deaths, restarts between any two stores of the catalog, and devices
// that fail, hang and lie; that the same seed gives the same run; and that each of the known bugs of
// engine/values/planted.h is found within a million events, from a seed that finds it again, and from few events alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "engine/values/planted.h"
#include "sim/fuzz.h"

namespace terrace::sim {
namespace {

using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kTierChoices = 2;  // of twelve: each round takes ten times as long
constexpr std::uint64_t kRoundsOfOneSeed = 2;
#else
constexpr std::uint64_t kTierChoices = 12;
constexpr std::uint64_t kRoundsOfOneSeed = 5;
#endif

void expect_clean(const FuzzOptions& options) {
  std::cout << "seed " << options.seed << '\n';
  const FuzzResult result = fuzz(options);
  EXPECT_FALSE(result.finding) << "round " << result.finding->round << ", event " << result.finding->event << ": "
                               << result.finding->law;
  EXPECT_EQ(result.events, options.events);
  EXPECT_GT(result.counts.deaths, 0u);
  EXPECT_GT(result.counts.granted, result.counts.refused / 2) << "much of what is asked for can be had";
  std::cout << result.counts.granted << " leases, " << result.counts.deaths << " deaths, " << result.counts.restarts
            << " restarts, " << result.counts.faults << " faults\n";
}

class Fuzz : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Fuzz, KeepsTheLaws) {
  FuzzOptions options;
  options.seed = GetParam();
  options.events = kTierChoices * kRoundEvents;
  expect_clean(options);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Fuzz, ::testing::Values(1u, 2u, 3u, 4u));

TEST(FreshSeed, KeepsTheLaws) {
  FuzzOptions options;
  options.seed = std::random_device{}();
  options.events = kTierChoices * kRoundEvents;
  expect_clean(options);
}

// Law 7.
TEST(OneSeed, SameRunWithAnyNumberOfThreads) {
  FuzzOptions options;
  options.seed = 77;
  options.events = kRoundsOfOneSeed * kRoundEvents;
  const FuzzResult one = fuzz(options);
  options.threads = 3;
  const FuzzResult three = fuzz(options);
  EXPECT_EQ(one.digest, three.digest);
  options.seed = 78;
  EXPECT_NE(one.digest, fuzz(options).digest);
}

TEST(Events, AreListedAndRead) {
  EXPECT_EQ(list_of({3, 8, 9, 10, 99}), "3,8-10,99");
  EXPECT_EQ(*events_of("3,8-10,99"), (std::vector<std::uint64_t>{3, 8, 9, 10, 99}));
  for (const char* bad : {"x", "3,", "3-", "8-3", "5,4", "3;4", "20000", ","}) {
    const auto events = events_of(bad);
    ASSERT_FALSE(events) << bad;
    EXPECT_THAT(events.error().message, HasSubstr("such as"));
  }
}

#ifdef TERRACE_SIM_PLANTED

struct SimRun {
  int status = -1;
  std::string output;
  // The rest of the line after `what`.
  std::string after(const std::string& what) const {
    const std::size_t at = output.find(what);
    if (at == std::string::npos) return {};
    return output.substr(at + what.size(), output.find('\n', at) - at - what.size());
  }
};

SimRun planted_sim(const std::string& arguments) {
  SimRun run;
  FILE* pipe = popen((std::string(TERRACE_SIM_PLANTED) + " fuzz " + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return run;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) run.output.append(buffer.data(), got);
  run.status = pclose(pipe);
  return run;
}

class Planted : public ::testing::TestWithParam<std::string> {};

TEST_P(Planted, IsFoundAndReplayed) {
  const SimRun found = planted_sim("--seed 1 --events 1000000 --threads 1 --minimise 200 --plant " + GetParam());
  std::cout << found.output;
  ASSERT_NE(found.status, 0) << "not found within a million events";
  const std::string law = found.after("violation: ");
  ASSERT_FALSE(law.empty());
  const SimRun again = planted_sim("--seed 1 --events 1000000 --minimise 0 --plant " + GetParam() + " --round " +
                                   found.after("in round ").substr(0, found.after("in round ").find(',')));
  EXPECT_EQ(again.after("violation: "), law) << again.output;
  const std::string only = found.after("--only ");
  ASSERT_FALSE(only.empty());
  const SimRun fewest =
      planted_sim("--seed 1 --events 1000000 --minimise 0 --plant " + GetParam() + " --round " +
                  found.after("in round ").substr(0, found.after("in round ").find(',')) + " --only " + only);
  EXPECT_FALSE(fewest.after("violation: ").empty()) << fewest.output;
}

std::string without_dashes(const ::testing::TestParamInfo<std::string>& bug) {
  std::string name = bug.param;
  std::erase(name, '-');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Bugs, Planted,
                         ::testing::ValuesIn(std::vector<std::string>(engine::kPlantNames.begin() + 1,
                                                                      engine::kPlantNames.end())),
                         without_dashes);

TEST(PlantedBuild, FindsNothingWithoutABug) {
  const SimRun run = planted_sim("--seed 1 --events 200000 --plant none");
  EXPECT_EQ(run.status, 0) << run.output;
}

#endif

}  // namespace
}  // namespace terrace::sim
