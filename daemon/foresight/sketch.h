// SPDX-License-Identifier: Apache-2.0
// How alike two steps are, from two kilobytes of each: the share of their uses that both have (Jaccard), estimated by
// the least hash in each of some bins (MinHash by one permutation: Li, Owen, Zhang, NIPS 2012).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "foresight/template.h"

namespace terrace::foresight {

class Sketch {
 public:
  Sketch() { least_.fill(kEmpty); }

  // How often it is used does not count, nor when.
  void add(const TemplateUse& use) {
    const std::uint64_t what = (static_cast<std::uint64_t>(use.slot) << 8) ^
                               (static_cast<std::uint64_t>(use.place) << 40) ^ static_cast<std::uint64_t>(use.mode);
    const std::uint64_t hash = mixed(what);
    std::uint64_t& least = least_[hash % kBins];
    least = std::min(least, hash);
  }

  // From 0 to 1, give or take 0.03; 1 of two without uses.
  double likeness(const Sketch& other) const {
    std::size_t used = 0;
    std::size_t same = 0;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      used += least_[bin] != kEmpty || other.least_[bin] != kEmpty ? 1 : 0;
      same += least_[bin] != kEmpty && least_[bin] == other.least_[bin] ? 1 : 0;
    }
    return used == 0 ? 1 : static_cast<double>(same) / static_cast<double>(used);
  }

 private:
  static constexpr std::size_t kBins = 256;
  static constexpr std::uint64_t kEmpty = std::numeric_limits<std::uint64_t>::max();

  // The finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
  static std::uint64_t mixed(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
  }

  std::array<std::uint64_t, kBins> least_;
};

}  // namespace terrace::foresight
