// SPDX-License-Identifier: Apache-2.0
// The engine's record of one tensor: where its copies lie, which of them are valid, and what is being done to it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/bytes.h"
#include "base/ids.h"
#include "engine/values/activity.h"
#include "engine/values/level.h"
#include "tier/extent.h"

namespace terrace::engine {

// Where a sliding copy goes.
struct Slide {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // those of the first bytes that are there already
};

// What few tensors have.
struct Rare {
  std::optional<tier::Pieces> pieces;
  std::optional<Slide> slide;
};

// What of it does not change is in the catalog alone: engine/catalog/facts.h.
struct Tensor {
  std::uint64_t number = 0;                     // never used twice; 0: the slot is free
  std::uint64_t bytes = 0;                      // as asked for
  std::uint64_t version = 0;                    // of the bytes at home on the block tier
  std::array<std::uint64_t, kLevels> offset{};  // of each copy that has an extent (block: of the only piece)
  std::unique_ptr<Rare> rare;
  std::uint64_t first_checksum = 0;  // block
  std::uint64_t admission = 0;       // the admission that is bringing it somewhere; 0: none
  std::uint64_t transfer = 0;        // id of the transfer that touches it; 0: none
  std::uint64_t mark = 0;            // scratch of whoever walks a set
  std::uint64_t awaited_by = 0;      // the admission that waits for leases of other members on it to end; 0: none
  SessionId pinner{};                // of a share's, pinned: by whom
  SessionId holder{};                // of a share's, published to this member alone, which may write; 0: to all members
  std::uint32_t incarnation = 0;
  std::uint32_t wanted = 0;  // admissions that wait for its leases to end
  std::uint8_t device = 0;   // tier index of the device copy
  std::uint8_t extents = 0;  // levels with an extent, as bits
  std::uint8_t valid = 0;    // levels whose bytes are the content, as bits; settled when the word is claimed
  Activity activity = Activity::kIdle;
  Level published : 2 = Level::kNone;  // the copy that the word leases
  Level pinned : 2 = Level::kNone;
  Level leaving : 2 = Level::kNone;  // kEvicting: the copy that is given up
  Level sliding : 2 = Level::kNone;  // kSliding: the copy that moves
  bool claimed : 1 = false;          // the word is kClaimed
  bool written : 1 = false;          // it has content
  bool lost : 1 = false;             // it had content, which no copy has any more
  bool torn : 1 = false;             // it has no content, since an overwrite ended before it was whole
  bool deleted : 1 = false;          // only what is in use keeps it
  bool forget : 1 = false;           // its content goes when the activity ends
  bool prefetched : 1 = false;       // arrived by a prefetch, and not leased since
  bool hinted : 1 = false;          // what is published was asked for ahead of time by its client, and not leased since
  bool touched : 1 = false;         // since the last commit
  bool lost_in_device : 1 = false;  // lost: with its copy in a device
  bool home_bad : 1 = false;        // writing to its home failed, and there is no other region for it

  bool live() const { return number != 0; }
  bool has(Level level) const { return (extents & bit(level)) != 0; }
  bool is_valid(Level level) const { return (valid & bit(level)) != 0; }
  bool idle() const { return activity == Activity::kIdle; }
  // The block copy's.
  tier::Pieces home() const { return pieces() != nullptr ? *pieces() : tier::Pieces(extent(Level::kBlock)); }
  // Its several ones; none where it lies in one piece.
  const tier::Pieces* pieces() const { return rare != nullptr && rare->pieces ? &*rare->pieces : nullptr; }
  void set_pieces(const tier::Pieces& home) {
    if (home.size() > 1)
      rarely().pieces = home;
    else if (rare != nullptr)
      rare->pieces.reset();
    forget_if_common();
  }
  // Of the copy at `sliding`.
  Slide& slide() const { return *rare->slide; }
  void begin_slide(Level level, Slide slide) {
    sliding = level;
    rarely().slide = slide;
  }
  Slide end_slide() {
    sliding = Level::kNone;
    const Slide ended = slide();
    rare->slide.reset();
    forget_if_common();
    return ended;
  }
  void forget_if_common() {
    if (rare != nullptr && !rare->pieces && !rare->slide) rare.reset();
  }
  Rare& rarely() {
    if (rare == nullptr) rare = std::make_unique<Rare>();
    return *rare;
  }
  // Of an extent that holds it.
  std::uint64_t extent_bytes() const { return align_up(bytes, kPageBytes); }
  tier::Extent extent(Level level) const { return {offset[index(level)], extent_bytes()}; }
};
static_assert(sizeof(Tensor) == 120, "of a million tensors");

// Bytes that a copy which slides has of its new extent, beside its old one.
inline std::uint64_t slide_bytes(const Tensor& tensor, Level level) {
  if (tensor.sliding != level) return 0;
  const tier::Extent old = tensor.extent(level);
  const std::uint64_t to = tensor.slide().offset;
  return std::min(old.bytes, old.offset > to ? old.offset - to : old.bytes);
}

// The level of its fastest copy whose bytes are the content; kNone: there is none.
inline Level fastest_valid(const Tensor& tensor) {
  for (const Level level : kAllLevels)
    if (tensor.is_valid(level)) return level;
  return Level::kNone;
}

}  // namespace terrace::engine
