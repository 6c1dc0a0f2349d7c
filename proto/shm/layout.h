// SPDX-License-Identifier: Apache-2.0
// The session region: one sealed memfd that a trainer and the daemon share. Lease table, request rings, access logs and
// the arena for batches. Docs: docs/reference/formats.md. The daemon treats every byte of it as an attacker's.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/word.h"

namespace terrace::shm {

inline constexpr std::uint64_t kRegionMagic = 0x31454341'52524554;  // "TERRACE1", little-endian
inline constexpr std::uint32_t kProtocolVersion = 6;

// Where a client wants a tensor, or where it is.
inline constexpr std::uint32_t kPlaceHost = 0;
inline constexpr std::uint32_t kPlaceDevice0 = 1;           // device:N is kPlaceDevice0 + N
inline constexpr std::uint32_t kPlaceBlock = 0xFFFF;        // only as the target of a swap-out
inline constexpr std::uint32_t kPlaceNowhere = 0xFFFFFFFF;  // never written
inline constexpr std::uint32_t kPlacesMax = 9;              // host and eight devices

// One tensor of the session: one cache line.
struct alignas(64) TableSlot {
  AtomicWord word;
  std::uint64_t offset;  // of the published copy in its place's address range, bytes; valid under a lease
  std::uint64_t bytes;   // as asked for at creation
  std::uint32_t place;   // of the published copy
  std::uint32_t reserved32;
  std::array<std::uint64_t, 4> reserved;
};
static_assert(sizeof(TableSlot) == 64 && offsetof(TableSlot, offset) == 8 && offsetof(TableSlot, place) == 24);

// What a ring entry asks for. The numbers are part of the layout.
enum class Operation : std::uint32_t {
  kCreate = 1,    // block: count CreateRecord; result: count packed handles in the block
  kDelete = 2,    // block: count packed handles (so for all that follow)
  kAcquire = 3,   // place; block: the handles, then a byte of shm::Mode for each; granted with the counts already set,
                  // all or nothing
  kMove = 4,      // place: bring the set there and lease nothing (swap in, swap out)
  kPrefetch = 5,  // place: begin to, and answer at once
  kEvict = 6,     // move down to the home when convenient, and answer at once
  kDontNeed = 7,  // drop the content without a write-back
  kPin = 8,       // place: bring there and keep; counts as a lease
  kUnpin = 9,
  kMarkStep = 10,     // value: kind of the step that begins (0 train, 1 accumulate, 2 eval)
  kFind = 11,         // block: count CreateRecord, of which the name counts, and room for as many handles; result: the
                      // records whole, then the handles, packed; all or none
  kDeclareStep = 12,  // place, mode, value: DeclaredValue; block: the handles of one of a step's sets
};

// Submission::value of kDeclareStep: from the low bits, 8 of the kind of step, 24 of the set's position in it, 32 of
// how long it will be computed with, in microseconds.
struct DeclaredValue {
  static constexpr std::uint32_t kPositionMax = (1u << 24) - 1;
  std::uint8_t kind = 0;
  std::uint32_t position = 0;
  std::uint32_t compute_us = 0;
  constexpr std::uint64_t packed() const {
    return kind | std::uint64_t{position} << 8 | std::uint64_t{compute_us} << 32;
  }
  static constexpr DeclaredValue unpack(std::uint64_t packed) {
    return {static_cast<std::uint8_t>(packed), static_cast<std::uint32_t>(packed >> 8) & kPositionMax,
            static_cast<std::uint32_t>(packed >> 32)};
  }
};
static_assert(DeclaredValue::unpack(DeclaredValue{2, 70'000, 4'000'000'000}.packed()).position == 70'000);

// In Submission::flags: submitted before, under the same id, to a daemon that has ended since. It may have been carried
// out already; nothing is carried out twice, and the answer is what is true now: a delete of what is gone, an unpin of
// what is not pinned and a step mark that was counted are done.
inline constexpr std::uint64_t kResubmitted = 1;
// Of an acquire to read: it is no use, as when a checkpoint is written. A daemon that does not know it takes it for
// one.
inline constexpr std::uint64_t kPassing = 2;

struct Submission {
  std::uint64_t id = 0;  // the client's, echoed in the completion
  Operation operation{};
  std::uint32_t mode = 0;  // of kDeclareStep: shm::Mode
  std::uint32_t place = 0;
  std::uint32_t count = 0;         // records in the block
  std::uint64_t block_offset = 0;  // of the request's block in the arena, bytes
  std::uint64_t block_bytes = 0;
  std::uint64_t timeout_ns = 0;  // from the daemon's receipt; 0: answer at once or fail
  std::uint64_t value = 0;
  std::uint64_t flags = 0;  // of kResubmitted and kPassing
};
static_assert(sizeof(Submission) == 64);

struct Completion {
  std::uint64_t id = 0;
  std::uint32_t code = 0;           // terrace::ErrorCode; 0: done
  std::uint32_t message_bytes = 0;  // of the error's text, at the start of the request's block
  std::array<std::uint64_t, 6> reserved{};
};
static_assert(sizeof(Completion) == 64);

// Heads and tails count entries and never wrap back; an entry's place is its count modulo the ring's size. The producer
// publishes the tail, the consumer the head; each side keeps its own number privately and only reads the other's.
struct RingIndex {
  alignas(64) std::atomic<std::uint32_t> head;
  alignas(64) std::atomic<std::uint32_t> tail;     // of the completion ring: also the futex that clients wait on
  alignas(64) std::atomic<std::uint32_t> waiters;  // of the completion ring: clients in futex wait
  std::atomic<std::uint32_t> polled;  // of the submission ring: 1 while the daemon polls the tail and needs no doorbell
};
static_assert(sizeof(RingIndex) == 192);

struct CreateRecord {
  std::uint64_t bytes;
  std::uint32_t dtype;  // terrace::DType
  std::uint32_t rank;
  std::array<std::int64_t, 8> shape;    // elements
  std::array<std::int64_t, 8> strides;  // elements
  std::array<char, 176> name;           // UTF-8, zero-terminated
};
static_assert(sizeof(CreateRecord) == 320);

// An access log has one writer, the thread it is lent to, and overwrites its oldest entries when the daemon is slow.
struct LogEntry {
  std::uint32_t slot;
  std::uint32_t mode;
  std::uint64_t stamp;  // TSC
};
struct LogIndex {
  alignas(64) std::atomic<std::uint32_t> lent;  // 0 free, 1 a thread has it
  alignas(64) std::atomic<std::uint64_t> tail;  // entries ever written; also the count of fast leases
};
static_assert(sizeof(LogEntry) == 16 && sizeof(LogIndex) == 128);

inline constexpr std::uint32_t kRingEntries = 1024;
inline constexpr std::uint32_t kLogCount = 64;
inline constexpr std::uint32_t kLogEntries = 1024;
inline constexpr std::uint64_t kArenaBytes = 8ull << 20;
inline constexpr std::uint32_t kBlockBytesMin = 512;  // so that an error's text always fits
inline constexpr std::uint32_t kSetMax = 65536;       // handles in one set
inline constexpr std::uint32_t kCreateMax = 8192;     // records in one create

// First bytes of the region; offsets are from its start. All but `epoch`, `unlogged` and `closed` are constant.
struct RegionHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t table_slots;
  std::uint64_t region_bytes;
  std::uint64_t table_offset;
  std::uint64_t submissions_offset;  // RingIndex, then kRingEntries Submission
  std::uint64_t completions_offset;  // RingIndex, then kRingEntries Completion
  std::uint64_t logs_offset;         // kLogCount of: LogIndex, then kLogEntries LogEntry
  std::uint64_t arena_offset;
  std::uint64_t arena_bytes;
  std::atomic<std::uint64_t> epoch;     // one more at each restart of the daemon
  std::atomic<std::uint64_t> unlogged;  // fast leases by threads that got no log
  std::atomic<std::uint64_t> closed;    // 1: the client needs the session no more, whatever becomes of its Bye
};

inline constexpr std::uint64_t kLogBytes = sizeof(LogIndex) + kLogEntries * sizeof(LogEntry);

// The header of a region for `slots` tensors, all offsets filled in, page-aligned.
constexpr std::uint64_t page_up(std::uint64_t value) { return (value + 4095) & ~std::uint64_t{4095}; }
inline void lay_out(RegionHeader& header, std::uint32_t slots) {
  header.magic = kRegionMagic;
  header.version = kProtocolVersion;
  header.table_slots = slots;
  header.table_offset = page_up(sizeof(RegionHeader));
  header.submissions_offset = page_up(header.table_offset + slots * sizeof(TableSlot));
  header.completions_offset =
      page_up(header.submissions_offset + sizeof(RingIndex) + kRingEntries * sizeof(Submission));
  header.logs_offset = page_up(header.completions_offset + sizeof(RingIndex) + kRingEntries * sizeof(Completion));
  header.arena_offset = page_up(header.logs_offset + kLogCount * kLogBytes);
  header.arena_bytes = kArenaBytes;
  header.region_bytes = header.arena_offset + kArenaBytes;
}

}  // namespace terrace::shm
