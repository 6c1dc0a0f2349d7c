// SPDX-License-Identifier: Apache-2.0
// An explicit-state model of one tensor: two trainer threads, a death of either, and the engine, each step of which is
// one call of the real functions of shm/word.h. The explorer visits every reachable state, breadth first.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shm/word.h"

namespace terrace::shm::model {

// What is planted wrong, to see that the explorer finds it.
struct Rules {
  bool begin_clean_counts_writers = true;
  bool finish_clean_counts_writers = true;
  bool release_rings = true;
  bool claim_counts_leases = true;
  bool want_refuses_new_leases = true;
};

enum class Pc : std::uint8_t { kIdle, kReading, kWriting, kWrote, kMustRing };
enum class EnginePc : std::uint8_t { kIdle, kWaiting, kCleaning, kCleanCopied, kClaimed, kClaimedCopied, kAbsent };

struct Client {
  Pc pc = Pc::kIdle;
  bool dead = false;
  std::uint8_t leases_left = 0;
  std::uint8_t wrote = 0;  // version of its last write under the present lease
  bool operator==(const Client&) const = default;
};

// Versions number the writes: a copy's content is the version of the last write it holds.
struct State {
  std::uint64_t word = 0;
  std::array<Client, 2> clients{};
  EnginePc engine = EnginePc::kIdle;
  bool engine_saw_dirty = false;  // in the word that it claimed
  bool rung = false;              // doorbell, not yet read
  bool death_told = false;        // the engine has been told of every death so far
  std::uint8_t upper = 0;         // content of the published copy
  std::uint8_t lower = 0;         // content of the copy below
  std::uint8_t captured = 0;      // what the transfer in progress carries
  std::uint8_t versions = 0;      // writes so far
  std::uint8_t released = 0;      // the newest write whose lease was released
  std::uint8_t wants_left = 0;
  std::uint8_t cleans_left = 0;
  std::uint8_t evictions_left = 0;
  bool operator==(const State&) const = default;
};

struct Violation {
  std::string law;
  std::vector<std::string> steps;  // from the start; the last one breaks the law
};

struct Exploration {
  std::uint64_t states = 0;
  std::uint64_t steps = 0;
  std::optional<Violation> violation;  // a shortest one
};

// Every interleaving of two threads that each take up to `leases` leases (read or write), one death of each at any
// step, and an engine that cleans, wants and evicts up to `engine_rounds` times each.
Exploration explore(const Rules& rules, std::uint8_t leases, std::uint8_t engine_rounds);

}  // namespace terrace::shm::model
