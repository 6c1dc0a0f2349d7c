// SPDX-License-Identifier: Apache-2.0
// What two sequences have in common, in their order: the fewest insertions and deletions that make one of the other
// (Myers, "An O(ND) difference algorithm and its variations", 1986), a block of each at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace::foresight {

// Elements looked at together: what was moved, inserted or deleted by more is not found again. Bounds the work to so
// many operations an element, whatever the sequences are.
inline constexpr std::size_t kAlignedMax = 256;

enum class Edit : std::uint8_t {
  kBoth,    // the next element of both
  kFirst,   // of the first one alone
  kSecond,  // of the second one alone
};

std::vector<Edit> align(std::span<const std::uint64_t> first, std::span<const std::uint64_t> second);

}  // namespace terrace::foresight
