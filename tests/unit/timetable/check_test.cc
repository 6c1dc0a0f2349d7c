// SPDX-License-Identifier: Apache-2.0
// Shows that the checker takes a schedule made by hand, and for each of its rules refuses one that breaks it.
#include "timetable/check.h"

#include <gmock/gmock.h>

#include <functional>

namespace terrace::timetable {
namespace {

using std::chrono::nanoseconds;
using testing::HasSubstr;
using workload::Place;

// A byte takes a microsecond, and a move is complete one after that.
workload::Node small_node() {
  const workload::LinkSpeed link{
      .in_bytes_per_s = 1'000'000, .out_bytes_per_s = 1'000'000, .latency = nanoseconds(1000)};
  return {.name = "small",
          .hbm_bytes = 10,
          .host_bytes = 13,
          .block_bytes = workload::kUnlimited,
          .hbm = link,
          .block = link};
}

// Tensor 0 comes up from block, is updated and goes back; 1 lives in HBM for two runs; 3 is dead until c overwrites it.
workload::Workload small_workload() {
  workload::Workload small{.name = "small", .source = "a test", .tensors = {}, .runs = {}, .steps = {}};
  for (const std::uint64_t bytes : {6U, 4U, 5U, 2U, 3U}) small.tensors.push_back({.bytes = bytes});
  const auto run = [&](std::string name, Place place, auto read, auto write, auto free) {
    small.runs.push_back({.name = std::move(name),
                          .compute = nanoseconds(10'000),
                          .place = place,
                          .read = read,
                          .write = write,
                          .free = free});
  };
  using Ids = std::vector<workload::TensorId>;
  run("a", Place::kHbm, Ids{0}, Ids{1}, Ids{});
  run("b", Place::kHbm, Ids{0, 1}, Ids{0}, Ids{1});
  run("c", Place::kHost, Ids{2}, Ids{3}, Ids{});
  return small;
}

Schedule good() {
  Schedule schedule{
      .makespan_ns = 48'000, .at_start = {}, .runs_ns = {14'000, 24'000, 34'000}, .moves = {}, .drops = {}};
  schedule.at_start[1] = {2, 3};
  schedule.at_start[2] = {0, 2, 4};
  schedule.moves = {{0, Tier::kBlock, Tier::kHost, 0},
                    {0, Tier::kHost, Tier::kHbm, 7'000},
                    {0, Tier::kHbm, Tier::kHost, 34'000},
                    {0, Tier::kHost, Tier::kBlock, 41'000}};
  schedule.drops = {{3, Tier::kHost, 0}, {0, Tier::kHost, 14'000}, {0, Tier::kHbm, 41'000}, {0, Tier::kHost, 48'000}};
  return schedule;
}

TEST(Check, TakesAScheduleThatKeepsTheRules) {
  EXPECT_EQ(violation(small_workload(), small_node(), good()), std::nullopt);
}

struct Broken {
  std::string says;
  std::function<void(Schedule&)> breaks;
};

class CheckRefuses : public testing::TestWithParam<Broken> {};

TEST_P(CheckRefuses, WhatBreaksARule) {
  Schedule schedule = good();
  GetParam().breaks(schedule);
  const auto found = violation(small_workload(), small_node(), schedule);
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(*found, HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    , CheckRefuses,
    testing::Values(
        Broken{"two moves have the link from hbm to host",
               [](Schedule& s) { s.moves.push_back({1, Tier::kHbm, Tier::kHost, 31'000}); }},
        Broken{"there is no link", [](Schedule& s) { s.moves[2].to = Tier::kBlock; }},
        Broken{"moves from host, where it has no copy", [](Schedule& s) { s.moves[1].begin_ns = 6'000; }},
        Broken{"moves to host, where it is already",
               [](Schedule& s) { s.moves.push_back({2, Tier::kBlock, Tier::kHost, 20'000}); }},
        Broken{"host is over its capacity",
               [](Schedule& s) { s.moves.push_back({4, Tier::kBlock, Tier::kHost, 8'000}); }},
        Broken{"reads tensor 0, which is not there", [](Schedule& s) { s.runs_ns[0] = 13'000; }},
        Broken{"begins before the one before it ends", [](Schedule& s) { s.runs_ns[1] = 23'000; }},
        Broken{"not every run is there", [](Schedule& s) { s.runs_ns.pop_back(); }},
        Broken{"outside of the period", [](Schedule& s) { s.makespan_ns = 43'000; }},
        Broken{"the only place that has it",
               [](Schedule& s) {
                 s.moves.resize(2);
                 s.drops = {{3, Tier::kHost, 0}, {0, Tier::kHost, 14'000}, {0, Tier::kHbm, 34'000}};
               }},
        Broken{"dropped in host, where it has no copy", [](Schedule& s) { s.drops[1].at_ns = 5'000; }},
        Broken{"while a run uses it there", [](Schedule& s) { s.drops.push_back({2, Tier::kHost, 40'000}); }},
        Broken{"while a move reads it", [](Schedule& s) { s.drops[2].at_ns = 40'000; }},
        Broken{"writes tensor 0 while it moves", [](Schedule& s) { s.moves[2].begin_ns = 20'000; }},
        Broken{"moves while a run writes it", [](Schedule& s) { s.moves[2].begin_ns = 30'000; }},
        Broken{"is freed while it moves", [](Schedule& s) { s.moves.push_back({1, Tier::kHbm, Tier::kHost, 29'500}); }},
        Broken{"at one end of the period alone", [](Schedule& s) { s.drops.pop_back(); }}));

}  // namespace
}  // namespace terrace::timetable
