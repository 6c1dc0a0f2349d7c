// SPDX-License-Identifier: Apache-2.0
// Many events in rounds, each with a world of its own, and what to do when a law breaks: the seed says where, and the
// fewest events that still break it are looked for.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "sim/world.h"

namespace terrace::sim {

inline constexpr std::uint64_t kRoundEvents = 20'000;

struct FuzzOptions {
  std::uint64_t seed = 1;
  std::uint64_t events = 0;
  std::uint32_t threads = 1;
  bool restarts = true;
  bool faults = true;
  std::function<void(std::uint64_t events_done)> progress;  // from any thread; may be empty
};

struct Finding {
  std::uint64_t round = 0;
  std::uint64_t event = 0;  // within the round; kRoundEvents at most, which stands for the round's end
  std::string law;
};

struct FuzzResult {
  std::uint64_t events = 0;
  Counts counts;
  std::uint64_t digest = 0;
  std::optional<Finding> finding;  // the first one, by round
};

// The same for the same seed, events and switches, whatever the number of threads.
FuzzResult fuzz(const FuzzOptions& options);

// One round again, of `events` events, or of those alone that are given, in order. A line an action goes to `trace`.
FuzzResult replay(const FuzzOptions& options, std::uint64_t round, std::uint64_t events,
                  const std::vector<std::uint64_t>* only, std::ostream* trace);

// The events of the finding's round without which it does not break a law; any law, since fewer events may break
// another one first. Runs `tries` rounds at most.
std::vector<std::uint64_t> minimise(const FuzzOptions& options, const Finding& finding, std::uint64_t tries);

// "3,8-12,99", and back. InvalidArgument names what is no number.
std::string list_of(const std::vector<std::uint64_t>& events);
Result<std::vector<std::uint64_t>> events_of(const std::string& list);

}  // namespace terrace::sim
