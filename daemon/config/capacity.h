// SPDX-License-Identifier: Apache-2.0
// The units in which a tier's capacity is given out, and so the sizes that it can have.
#pragma once

#include <cstdint>

namespace terrace::config {

// The least capacity of a tier that clients map, and what all of its segments are multiples of.
inline constexpr std::uint64_t kSegmentUnitBytes = std::uint64_t{2} << 20;
// What each file of a block tier has at least, and in whole.
inline constexpr std::uint64_t kStripeBytes = std::uint64_t{1} << 20;

// The size of the segments in which a device or memory tier of this capacity gives memory to sessions: a sixteenth of
// it, so that several can share it fairly, in whole units, at most 256 MiB. Of a capacity in whole segments the
// answer is the same.
std::uint64_t segment_bytes(std::uint64_t capacity_bytes);

// `capacity_bytes` in whole segments, the rest left away; 0 where it is less than one.
std::uint64_t whole_segments(std::uint64_t capacity_bytes);

}  // namespace terrace::config
