// SPDX-License-Identifier: Apache-2.0
// Gives out extents of one address space: best fit, neighbours joined on free, O(log n) each. Serves every kind of
// tier, and the block tier's checksum table (unit 1). Pure bookkeeping; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tier/extent.h"

namespace terrace::tier {

class ExtentAllocator {
 public:
  // `unit`: every size is rounded up to it (a power of two). The space is empty until extended.
  explicit ExtentAllocator(std::uint64_t unit) : unit_(unit) {}

  // Adds `bytes` (a multiple of the unit) at the end of the space.
  void extend(std::uint64_t bytes);
  // Takes `bytes` away from the end, if they are free; false (and nothing done) if not.
  bool shrink(std::uint64_t bytes);

  // The smallest free extent that fits, cut to size; the lowest of equals. None if no single one does.
  std::optional<Extent> allocate(std::uint64_t bytes);
  // The same in at most kPiecesMax pieces: one if possible, else the largest ones. None if they do not suffice.
  std::optional<Pieces> allocate_pieces(std::uint64_t bytes);
  // Gives back an extent that was given out, or a part of one. Aborts if any of it is free already.
  void free(Extent extent);
  // Whether this very extent can be taken: whole units within the space, all of them free. For numbers from anywhere.
  bool is_free(Extent extent) const;
  // Gives out this very extent. Aborts if any of it is not free.
  void take(Extent extent);
  // The free parts of `range`, in order.
  std::vector<Extent> free_within(Extent range) const;
  // Takes a free extent out of use (a bad region of a disk). Aborts if any of it is not free.
  void retire(Extent extent);
  // What was taken out, or a part of it, is free again. Aborts if any of it is free already.
  void take_back(Extent extent);

  std::uint64_t capacity_bytes() const { return capacity_; }  // extended less shrunk
  std::uint64_t free_bytes() const { return free_; }
  std::uint64_t retired_bytes() const { return retired_; }
  std::uint64_t used_bytes() const { return capacity_ - free_ - retired_; }
  std::uint64_t largest_free_bytes() const;
  // 1 - largest free / free: 0 is unfragmented; 0 when nothing is free.
  double fragmentation() const;
  // Start of the free run that reaches the end of the space; the capacity if the end is in use.
  std::uint64_t free_tail_offset() const;
  // Aborts unless the free extents are disjoint, joined, and sum to free_bytes().
  void check_invariants() const;

 private:
  using ByOffset = std::map<std::uint64_t, std::uint64_t>;
  using ByBytes = std::set<std::pair<std::uint64_t, std::uint64_t>>;

  void insert(Extent extent);
  void erase(ByOffset::iterator at);

  std::uint64_t unit_;
  std::uint64_t capacity_ = 0;
  std::uint64_t free_ = 0;
  std::uint64_t retired_ = 0;
  ByOffset by_offset_;  // offset -> bytes of each free extent
  ByBytes by_bytes_;    // (bytes, offset) of the same
  // Of the last one that was taken out, for the next one that comes in: allocating and freeing alternate.
  ByOffset::node_type offset_node_;
  ByBytes::node_type bytes_node_;
};

}  // namespace terrace::tier
