// SPDX-License-Identifier: Apache-2.0
// Bytes by group, as a tree of maxima: ranges grow, and the groups before one are searched, in O(log n).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace terrace::foresight {

class Occupancy {
 public:
  explicit Occupancy(std::span<const std::int64_t> bytes);

  // To the groups of [begin, end).
  void add(std::uint32_t begin, std::uint32_t end, std::int64_t bytes);
  // The first group f >= earliest such that none of [f, end) has more than `limit_bytes`; `end` if there is none.
  std::uint32_t first_below(std::uint32_t earliest, std::uint32_t end, std::int64_t limit_bytes) const;

 private:
  struct Node {
    std::int64_t most = 0;   // of the groups below, with what was added to this node
    std::int64_t added = 0;  // to all of them
  };
  void add(std::size_t node, std::uint32_t low, std::uint32_t high, std::uint32_t begin, std::uint32_t end,
           std::int64_t bytes);
  // The last group of [low, high), before `end`, that has more; UINT32_MAX if none.
  std::uint32_t last_above(std::size_t node, std::uint32_t low, std::uint32_t high, std::uint32_t end,
                           std::int64_t limit_bytes) const;

  std::uint32_t groups_ = 1;  // a power of two
  std::vector<Node> nodes_;
};

}  // namespace terrace::foresight
