// SPDX-License-Identifier: Apache-2.0
// Messages on data.sock (SOCK_SEQPACKET, one message a packet, fixed sizes): session set-up, its going on with a
// restarted daemon, and the passing of segments. Docs: docs/reference/formats-socket.md.
#pragma once

#include <array>
#include <cstdint>

#include "shm/layout.h"

namespace terrace::shm {

inline constexpr std::uint32_t kMessageMagic = 0x43525254;  // "TRRC", little-endian

enum class MessageType : std::uint32_t {
  kHello = 1,    // client: opens the session; the first message, unless that is kResume
  kWelcome = 2,  // daemon, with descriptors: region, doorbell (eventfd)
  kRefused = 3,  // daemon: the session could not be opened, or has ended, and why; then the socket closes
  kSegment = 4,  // daemon, with one descriptor: map it at `offset` of the place's range
  kRetire = 5,   // daemon: unmap that segment, then answer kRetired
  kRetired = 6,  // client
  kBye = 7,      // client: close the session
  kResume = 8,   // client: an open session goes on; the first message, on a fresh connection
  kResumed = 9,  // daemon: it does; after a kSegment for every segment of the session, known to the client or not, and
                 // the kStitches of its seams
  kStitch = 10,  // daemon: map these pieces of mapped segments once more, as a part of a seam
  kUnstitch = 11,  // daemon: unmap the whole seam at `offset`; a SegmentMessage, which nobody answers
};

struct MessageHeader {
  std::uint32_t magic = kMessageMagic;
  std::uint32_t version = kProtocolVersion;
  MessageType type{};
  std::uint32_t bytes = 0;  // of the whole message
};

// The bytes of a place that the session may always hold leased at once (DESIGN decision 13).
struct GuaranteeRecord {
  std::uint32_t place = 0;
  std::uint32_t reserved = 0;
  std::uint64_t bytes = 0;
};

// Whether the session is to be a part in a share, in place of having tensors of its own (DESIGN decision 3).
enum class ShareUse : std::uint32_t {
  kNone = 0,
  kRead = 1,    // one that is there, for reading alone
  kWrite = 2,   // one that is there
  kCreate = 3,  // a new one, for writing
};

struct Hello {
  MessageHeader header{.type = MessageType::kHello, .bytes = 0};
  std::uint64_t timeout_ns = 0;        // how long to wait for the guarantees
  std::uint32_t local_world_size = 1;  // ranks on this node; divides the default guarantees
  std::uint32_t guarantee_count = 0;   // stated ones; the places not named get the default
  std::array<GuaranteeRecord, kPlacesMax> guarantees{};
  std::array<char, 64> label{};  // for people, zero-terminated ("rank 3")
  std::array<char, 64> share{};  // its name, zero-terminated
  std::uint32_t share_use = 0;   // ShareUse
  std::uint32_t reserved = 0;
};

struct PlaceRecord {
  std::uint32_t place = 0;
  std::uint32_t writable_only = 0;  // 1: map once, writable (device); 0: map twice (host)
  std::uint64_t range_bytes = 0;    // address space to reserve for it
  std::uint64_t guarantee_bytes = 0;
  std::array<std::uint8_t, 16> gpu{};  // its uuid: segments are that GPU's memory; zeros: segments are memfds
};

struct Welcome {
  MessageHeader header{.type = MessageType::kWelcome, .bytes = 0};
  std::uint32_t session = 0;
  std::uint32_t place_count = 0;
  std::array<std::uint8_t, 16> token{};
  std::uint64_t region_bytes = 0;
  std::uint32_t read_only = 0;  // 1: segments are to be mapped for reading alone
  std::uint32_t reserved = 0;
  std::array<PlaceRecord, kPlacesMax> places{};
};

struct Refused {
  MessageHeader header{.type = MessageType::kRefused, .bytes = 0};
  std::uint32_t code = 0;  // terrace::ErrorCode
  std::array<char, 500> message{};
};

// kSegment, kRetire, kRetired and kUnstitch.
struct SegmentMessage {
  MessageHeader header{};
  std::uint32_t place = 0;
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct StitchPiece {
  std::uint64_t offset = 0;  // of the place's range, within one segment or several
  std::uint64_t bytes = 0;   // whole pages
};
// From here on offsets are seams'.
inline constexpr std::uint64_t kSeamsBegin = std::uint64_t{1} << 48;
inline constexpr std::size_t kStitchPiecesMax = 28;  // in one message

// A seam comes in one message or several, its parts in order: it is whole once as many bytes of it were mapped. Seams
// lie outside of the place's range, at offsets that are given out once (docs/reference/formats-socket.md).
struct StitchMessage {
  MessageHeader header{.type = MessageType::kStitch, .bytes = 0};
  std::uint32_t place = 0;
  std::uint32_t count = 0;   // of the pieces
  std::uint64_t offset = 0;  // the seam's
  std::uint64_t bytes = 0;   // the seam's, all of it
  std::uint64_t at = 0;      // where in it the first piece lies
  std::array<StitchPiece, kStitchPiecesMax> pieces{};
};

struct Bye {
  MessageHeader header{.type = MessageType::kBye, .bytes = 0};
};

// From here until kResumed the client reads no completion and submits nothing. Answered by kResumed, or by kRefused:
// kUnavailable (not yet) or kResourceExhausted (too many connections): try again; anything else: the session is lost.
struct Resume {
  MessageHeader header{.type = MessageType::kResume, .bytes = 0};
  std::uint32_t session = 0;
  std::uint32_t completions_seen = 0;    // taken from the ring since the last reset, modulo 2^32
  std::array<std::uint8_t, 16> token{};  // of kWelcome
  std::uint64_t epoch = 0;               // the region's, as the client knows it
};

// Before it is sent the daemon has passed every segment that the session has, in one kSegment each (the client unmaps
// all others now), has set heads and tails of both rings to zero, and then the region's epoch to this one.
// The region and the doorbell are those of kWelcome.
struct Resumed {
  MessageHeader header{.type = MessageType::kResumed, .bytes = 0};
  std::uint32_t session = 0;
  std::uint32_t reserved = 0;
  std::uint64_t epoch = 0;
};

static_assert(sizeof(MessageHeader) == 16 && sizeof(GuaranteeRecord) == 16 && sizeof(PlaceRecord) == 40);
static_assert(sizeof(Hello) == 16 + 16 + 16 * kPlacesMax + 136 && sizeof(Welcome) == 56 + 40 * kPlacesMax);
static_assert(sizeof(StitchMessage) == 48 + 16 * kStitchPiecesMax);
static_assert(sizeof(Refused) == 520 && sizeof(SegmentMessage) == 40);
static_assert(sizeof(Resume) == 48 && sizeof(Resumed) == 32);

}  // namespace terrace::shm
