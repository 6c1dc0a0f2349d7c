// SPDX-License-Identifier: Apache-2.0
// Numbers drawn from a seed, the same on every machine, and cheap to begin anew: each event of a simulation has a
// sequence of its own, so that leaving one event out does not change what the others draw.
#pragma once

#include <cstdint>

namespace terrace {

// SplitMix64 (Steele, Lea, Flood 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  Random(std::uint64_t seed, std::uint64_t event) : state_(mix(seed) ^ mix(~event)) {}

  std::uint64_t next() { return mix(state_ += 0x9e37'79b9'7f4a'7c15); }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // Of 1: at least 0, and less than 1.
  double part() { return static_cast<double>(next() >> 11) / 9007199254740992.0; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }

 private:
  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11eb;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace terrace
