// SPDX-License-Identifier: Apache-2.0
#include "config/capacity.h"

#include <algorithm>

#include "base/bytes.h"

namespace terrace::config {
namespace {

constexpr std::uint64_t kSegmentBytesMax = 256 * kMiB;
constexpr std::uint64_t kSegmentsAtLeast = 16;

}  // namespace

std::uint64_t segment_bytes(std::uint64_t capacity_bytes) {
  const std::uint64_t part = align_down(capacity_bytes / kSegmentsAtLeast, kSegmentUnitBytes);
  return std::clamp(part, kSegmentUnitBytes, kSegmentBytesMax);
}

std::uint64_t whole_segments(std::uint64_t capacity_bytes) {
  return capacity_bytes - capacity_bytes % segment_bytes(capacity_bytes);
}

}  // namespace terrace::config
