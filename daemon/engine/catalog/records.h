// SPDX-License-Identifier: Apache-2.0
// The records of the catalog: what of sessions and tensors survives the daemon's death, in fixed-size structs whose
// layout is a format (docs/reference/formats.md). Places are true here; lease counts and dirty are true in the words.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "shm/layout.h"
#include "tier/extent.h"

namespace terrace::engine {

inline constexpr std::uint64_t kCatalogMagic = 0x31474C54'43525254;  // "TRRCTLG1", little-endian
// Goes up with the records, and with shm::kProtocolVersion: trainers of the former protocol could not resume.
inline constexpr std::uint32_t kCatalogVersion = 8;
inline constexpr std::size_t kTiersMax = shm::kPlacesMax + 1;  // devices, memory, block
inline constexpr std::size_t kNameBytesMax = 175;
inline constexpr std::size_t kRankMax = 8;
inline constexpr std::uint64_t kTextUnitBytes = 8;
inline constexpr std::uint64_t kTextBytesMax =  // of a tensor with the most dimensions, strides stated, and a long name
    2 * kRankMax * sizeof(std::int64_t) + (kNameBytesMax / kTextUnitBytes + 1) * kTextUnitBytes;
inline constexpr std::size_t kRetiredMax = 1024;     // extents of the block tier
inline constexpr std::size_t kSeamPiecesMax = 8192;  // of all seams of a session

// What changes of a tensor, of every one. Of a free slot all but the incarnation is zero; one of another session is a
// free one.
struct TensorState {
  std::uint64_t number = 0;
  std::uint64_t version = 0;
  std::array<std::uint64_t, 3> offset{};  // of each copy that there is; of a home in pieces, of the first
  std::uint64_t first_checksum = 0;
  std::uint32_t incarnation = 0;
  std::uint32_t session = 0;
  std::uint8_t device = 0;
  std::uint8_t extents = 0;
  std::uint8_t valid = 0;
  std::uint8_t published = 0;  // engine::Level
  std::uint8_t pinned = 0;     // engine::Level
  std::uint8_t flags = 0;
  std::array<std::uint8_t, 2> zero{};
};

// TensorState::flags
inline constexpr std::uint8_t kWritten = 1;
inline constexpr std::uint8_t kLost = 2;
inline constexpr std::uint8_t kTorn = 4;
inline constexpr std::uint8_t kDeleted = 8;
inline constexpr std::uint8_t kForget = 16;
inline constexpr std::uint8_t kHomeBad = 32;
inline constexpr std::uint8_t kUnderWay = 64;  // a transfer of it: queued, running, or a former daemon's
inline constexpr std::uint8_t kRare = 128;     // its TensorRarities count; otherwise they are what they begin with

// What changes of a tensor, of few: what lies apart costs the others no memory.
struct TensorRarities {
  std::uint64_t slide_offset = 0;  // of the copy that slides
  std::uint64_t slid_bytes = 0;
  std::uint32_t holder = 0;      // of a share's: the session that it is published to alone; 0: to all
  std::uint32_t pinner = 0;      // of a share's, pinned: by whom
  std::uint8_t sliding = 3;      // engine::Level
  std::uint8_t piece_count = 0;  // of its home on the block tier; 0: at most one, as its state says
  std::array<std::uint8_t, 6> zero{};
  std::array<tier::Extent, tier::kPiecesMax> pieces{};
};

// What does not change. Its dimensions and its name lie one behind the other among the texts, in as many bytes as they
// have, rounded up to 8.
struct TensorFacts {
  std::uint64_t bytes = 0;
  std::uint64_t text = 0;  // where, from the texts' begin; a multiple of 8
  std::uint32_t dtype = 0;
  std::uint8_t rank = 0;
  std::uint8_t dimension_count = 0;  // shape, then strides if stated
  std::uint16_t name_bytes = 0;

  constexpr std::uint64_t text_bytes() const {
    return (dimension_count * sizeof(std::int64_t) + name_bytes + (kTextUnitBytes - 1)) & ~(kTextUnitBytes - 1);
  }
};

// An ordinary session has one. A share has one with its tensors and memory, under its own number and without a process
// (its label is its name), and one for each session that has a part in it.
struct SessionRecord {
  std::uint32_t id = 0;  // 0: nobody's
  std::uint32_t uid = 0;
  std::int32_t pid = 0;
  std::uint32_t maps_segments = 0;
  std::uint32_t slots_used = 0;  // of its table: records from here on were never used
  std::uint32_t ending = 0;      // 1: only what was under way kept it
  std::uint64_t tenant = 0;      // whichever number the configuration gives it: Options::tenants
  std::uint64_t step = 0;
  std::uint32_t share = 0;   // 0: an ordinary session; its own number: a share; another's: a part in that share
  std::uint32_t writes = 0;  // 1: it may write in the share
  std::array<std::uint64_t, kTiersMax> floor_bytes{};
  std::array<std::uint64_t, kTiersMax> mapped_bytes{};  // of installed segments, from offset 0 on
  std::array<char, 64> label{};
  std::array<std::uint8_t, 16> token{};  // the front's

  // Whether a successor has somebody to go on with.
  bool lives() const { return id != 0 && ending == 0; }
  bool is_share() const { return id != 0 && share == id; }
};

struct TierRecord {
  std::uint32_t kind = 0;
  std::uint32_t lost = 0;  // 1: its memory was lost, and no daemon could use it since
  std::uint64_t capacity_bytes = 0;
  std::uint64_t segment_bytes = 0;
  std::uint64_t identity = 0;  // of what it lies in: TierOptions::identity
};

// A piece of a seam: pages of a session's segments that are shown a second time, side by side with others.
struct SeamRecord {
  std::uint32_t session = 0;  // 0: none; or a share
  std::uint32_t tier = 0;
  std::uint64_t seam = 0;  // the seam's offset
  std::uint64_t at = 0;    // the piece's, within the seam
  tier::Extent piece{};    // where it lies
};

// What belongs to no session, and changes.
struct NodeRecord {
  std::uint32_t next_session = 1;
  std::uint32_t retired_count = 0;
  std::uint64_t next_number = 1;
  std::uint64_t steps = 0;
  std::uint64_t next_seam = tier::kSeamsBegin;
};

// A request that took effect and may not have been answered yet; `count` words of GrantedSlot follow.
struct GrantRecord {
  enum class Kind : std::uint32_t { kLeases = 1, kTensors = 2, kStep = 3 };
  std::uint64_t request = 0;
  std::uint32_t session = 0;
  Kind kind{};
  std::uint32_t value = 0;  // kLeases: the engine::Level; kStep: how many steps there are with it, modulo 2^32
  std::uint32_t count = 0;
  std::uint32_t position = 0;   // the tail of the session's completion ring once the answer is in it
  std::uint32_t answering = 0;  // 1: `position` is set
};

struct GrantedSlot {
  std::uint32_t slot = 0;
  std::uint32_t mark = 0;  // kTensors: the incarnation; kLeases: GrantedLease
};

// GrantedSlot::mark of a lease. From the low bits: 1 of the turn, 1 of whether it is fresh, 2 of the mode.
struct GrantedLease {
  shm::Mode mode = shm::Mode::kRead;
  bool turn = false;   // the word's after the grant
  bool fresh = false;  // published by the grant: of an overwrite, with no content yet
  constexpr std::uint32_t packed() const {
    return (turn ? 1u : 0u) | (fresh ? 2u : 0u) | static_cast<std::uint32_t>(mode) << 2;
  }
  static constexpr GrantedLease unpack(std::uint32_t mark) {
    return {static_cast<shm::Mode>(mark >> 2 & 3), (mark & 1) != 0, (mark & 2) != 0};
  }
};

static_assert(sizeof(TensorState) == 64 && sizeof(TensorRarities) == 160 && sizeof(GrantRecord) == 32);
static_assert(sizeof(TensorFacts) == 24 && kTextBytesMax % kTextUnitBytes == 0);
static_assert(sizeof(SeamRecord) == 40 && sizeof(SessionRecord) % 8 == 0 && sizeof(NodeRecord) % 8 == 0 &&
              sizeof(GrantedSlot) == 8);
static_assert(std::is_trivially_copyable_v<TensorState> && std::is_trivially_copyable_v<SessionRecord>);

}  // namespace terrace::engine
