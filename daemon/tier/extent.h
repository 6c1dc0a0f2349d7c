// SPDX-License-Identifier: Apache-2.0
// Places in memory as values: an extent is a run of a tier's address space, a location is where a copy of a tensor
// lies.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/ids.h"

namespace terrace::tier {

enum class Kind : std::uint8_t { kDevice, kMemory, kBlock };

// A run of bytes in a tier's address space; both numbers are multiples of 4 KiB. In a mapped tier (device, memory) each
// session has an address space of its own, starting at 0; the block tier has one for all.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  auto operator<=>(const Extent&) const = default;
  constexpr std::uint64_t end() const { return offset + bytes; }
  constexpr bool contains(std::uint64_t at) const { return offset <= at && at < end(); }
};

// On the block tier a home may lie in several pieces; elsewhere a copy is one extent.
inline constexpr std::size_t kPiecesMax = 8;

// From here on, offsets of a session's address space in a mapped tier are those of seams: runs of addresses behind
// which lie free pages that were stitched together from wherever they were. Each number is given out once.
inline constexpr std::uint64_t kSeamsBegin = std::uint64_t{1} << 48;

// A few extents, in the order of the tensor's bytes.
class Pieces {
 public:
  Pieces() = default;
  explicit Pieces(Extent only) { push(only); }
  void push(Extent extent) {
    TERRACE_CHECK(count_ < kPiecesMax);
    pieces_[count_++] = extent;
  }
  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  const Extent& operator[](std::size_t index) const { return pieces_[index]; }
  std::span<const Extent> span() const { return {pieces_.data(), count_}; }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const Extent& piece : span()) sum += piece.bytes;
    return sum;
  }
  bool operator==(const Pieces&) const = default;

 private:
  std::array<Extent, kPiecesMax> pieces_{};
  std::size_t count_ = 0;
};

// Where the bytes of one copy lie.
struct Location {
  TierId tier{};
  SessionId session{};  // whose address space; ignored by the block tier
  Pieces pieces;
  std::uint64_t first_checksum = 0;  // block tier: index of the first chunk's entry in its checksum table
};

// Checksums are per chunk of a tensor: chunk k covers its bytes [k MiB, (k + 1) MiB).
inline constexpr std::uint64_t kChunkBytes = 1024 * 1024;

// Entries in the checksum table that a tensor of `bytes` needs.
constexpr std::uint64_t chunk_count(std::uint64_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

// Entries that the checksum table of a block tier of `capacity_bytes` has: 8 bytes a MiB, and one more for each of the
// first 2^20 tensors, whose last chunks are not full. No more than there can be 4 KiB tensors.
constexpr std::uint64_t checksum_entries(std::uint64_t capacity_bytes) {
  const std::uint64_t entries = capacity_bytes / kChunkBytes + (std::uint64_t{1} << 20);
  return entries < capacity_bytes / 4096 ? entries : capacity_bytes / 4096;
}

}  // namespace terrace::tier
