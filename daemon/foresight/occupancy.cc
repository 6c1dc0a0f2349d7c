// SPDX-License-Identifier: Apache-2.0
#include "foresight/occupancy.h"

#include <algorithm>

namespace terrace::foresight {

Occupancy::Occupancy(std::span<const std::int64_t> bytes) {
  while (groups_ < bytes.size()) groups_ *= 2;
  nodes_.resize(std::size_t{groups_} * 2);
  for (std::size_t i = 0; i < bytes.size(); ++i) nodes_[groups_ + i].most = bytes[i];
  for (std::size_t node = groups_; --node > 0;)
    nodes_[node].most = std::max(nodes_[2 * node].most, nodes_[2 * node + 1].most);
}

void Occupancy::add(std::uint32_t begin, std::uint32_t end, std::int64_t bytes) {
  if (begin < end) add(1, 0, groups_, begin, end, bytes);
}

void Occupancy::add(std::size_t node, std::uint32_t low, std::uint32_t high, std::uint32_t begin, std::uint32_t end,
                    std::int64_t bytes) {
  if (end <= low || high <= begin) return;
  if (begin <= low && high <= end) {
    nodes_[node].most += bytes;
    nodes_[node].added += bytes;
    return;
  }
  const std::uint32_t middle = low + (high - low) / 2;
  add(2 * node, low, middle, begin, end, bytes);
  add(2 * node + 1, middle, high, begin, end, bytes);
  nodes_[node].most = std::max(nodes_[2 * node].most, nodes_[2 * node + 1].most) + nodes_[node].added;
}

std::uint32_t Occupancy::last_above(std::size_t node, std::uint32_t low, std::uint32_t high, std::uint32_t end,
                                    std::int64_t limit_bytes) const {
  if (low >= end || nodes_[node].most <= limit_bytes) return UINT32_MAX;
  if (high - low == 1) return low;
  const std::uint32_t middle = low + (high - low) / 2;
  const std::int64_t limit = limit_bytes - nodes_[node].added;
  const std::uint32_t right = last_above(2 * node + 1, middle, high, end, limit);
  return right != UINT32_MAX ? right : last_above(2 * node, low, middle, end, limit);
}

std::uint32_t Occupancy::first_below(std::uint32_t earliest, std::uint32_t end, std::int64_t limit_bytes) const {
  const std::uint32_t above = last_above(1, 0, groups_, end, limit_bytes);
  const std::uint32_t first = above == UINT32_MAX ? 0 : above + 1;
  return std::min(std::max(first, earliest), end);
}

}  // namespace terrace::foresight
