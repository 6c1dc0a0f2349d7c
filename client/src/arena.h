// SPDX-License-Identifier: Apache-2.0
// Blocks of the session region's arena, for requests too large for a ring entry: a buddy allocator whose books are the
// library's own (the arena itself is shared memory). Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>

namespace terrace::client {

class Arena {
 public:
  struct Block {
    std::uint64_t offset = 0;  // in the arena, bytes
    std::uint64_t bytes = 0;   // a power of two
  };

  // An arena of `bytes`, a power of two and at least one smallest block.
  explicit Arena(std::uint64_t bytes);

  // A block of at least `bytes`; nothing if none is free now (or ever, beyond the arena's size).
  std::optional<Block> take(std::uint64_t bytes);
  void give_back(const Block& block);
  std::uint64_t free_bytes() const { return free_bytes_; }

 private:
  static constexpr unsigned kOrdersMax = 32;
  std::uint64_t bytes_;
  std::uint64_t free_bytes_;
  std::array<std::set<std::uint64_t>, kOrdersMax> free_;  // offsets, by order: blocks of smallest << order
};

}  // namespace terrace::client
