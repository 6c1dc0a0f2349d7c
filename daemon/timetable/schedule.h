// SPDX-License-Identifier: Apache-2.0
// What moves when, and when each run computes, in one period of a steady state: the whole workload once. The next
// period does the same `makespan` later. Plain values; tests/bench/foresight --schedules has their file checked.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <vector>

#include "workload/workload.h"

namespace terrace::timetable {

// Where content can be, from the fastest.
enum class Tier : std::uint8_t { kHbm, kHost, kBlock };
inline constexpr std::size_t kTiers = 3;
inline constexpr std::array kAllTiers = {Tier::kHbm, Tier::kHost, Tier::kBlock};
inline constexpr std::array<std::string_view, kTiers> kTierNames = {"hbm", "host", "block"};
constexpr std::string_view name(Tier tier) { return kTierNames[static_cast<std::size_t>(tier)]; }
constexpr Tier tier_of(workload::Place place) { return place == workload::Place::kHbm ? Tier::kHbm : Tier::kHost; }

// A copy is made over the link between two neighbouring tiers. Times are nanoseconds from the period's beginning.
struct Move {
  workload::TensorId tensor = 0;
  Tier from{};
  Tier to{};
  std::int64_t begin_ns = 0;
};

// A copy is given up.
struct Drop {
  workload::TensorId tensor = 0;
  Tier at{};
  std::int64_t at_ns = 0;
};

// How long `bytes` have a link of `bytes_per_s`, which must not be 0: rounded up.
std::int64_t on_link_ns(std::uint64_t bytes, std::uint64_t bytes_per_s);

struct Schedule {
  std::int64_t makespan_ns = 0;
  std::array<std::vector<workload::TensorId>, kTiers> at_start;  // by tier: what has a copy there at 0
  std::vector<std::int64_t> runs_ns;                             // begins, by run
  std::vector<Move> moves;                                       // by time
  std::vector<Drop> drops;                                       // by time
};

// As JSON Lines: a header with the workload's and the node's name and the bound, then runs, moves and drops by time.
void write(std::ostream& out, const Schedule& schedule, std::string_view workload, std::string_view node,
           std::int64_t lower_bound_ns);

}  // namespace terrace::timetable
