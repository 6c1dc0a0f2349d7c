// SPDX-License-Identifier: Apache-2.0
// Shows that every field of shared memory and of the data socket lies where docs/reference/formats.md says, and
// formats-socket.md beside it.
#include "shm/layout.h"

#include <gtest/gtest.h>

#include "shm/message.h"

namespace terrace::shm {
namespace {

TEST(Layout, OfTheRegionIsAsWrittenDown) {
  EXPECT_EQ(offsetof(RegionHeader, version), 8u);
  EXPECT_EQ(offsetof(RegionHeader, table_slots), 12u);
  EXPECT_EQ(offsetof(RegionHeader, region_bytes), 16u);
  EXPECT_EQ(offsetof(RegionHeader, table_offset), 24u);
  EXPECT_EQ(offsetof(RegionHeader, submissions_offset), 32u);
  EXPECT_EQ(offsetof(RegionHeader, completions_offset), 40u);
  EXPECT_EQ(offsetof(RegionHeader, logs_offset), 48u);
  EXPECT_EQ(offsetof(RegionHeader, arena_offset), 56u);
  EXPECT_EQ(offsetof(RegionHeader, arena_bytes), 64u);
  EXPECT_EQ(offsetof(RegionHeader, epoch), 72u);
  EXPECT_EQ(offsetof(RegionHeader, unlogged), 80u);
  EXPECT_EQ(offsetof(RegionHeader, closed), 88u);
  EXPECT_EQ(offsetof(TableSlot, offset), 8u);
  EXPECT_EQ(offsetof(TableSlot, bytes), 16u);
  EXPECT_EQ(offsetof(TableSlot, place), 24u);
  EXPECT_EQ(offsetof(RingIndex, tail), 64u);
  EXPECT_EQ(offsetof(RingIndex, waiters), 128u);
  EXPECT_EQ(offsetof(RingIndex, polled), 132u);
  EXPECT_EQ(offsetof(LogIndex, tail), 64u);
  EXPECT_EQ(offsetof(LogEntry, mode), 4u);
  EXPECT_EQ(offsetof(LogEntry, stamp), 8u);
}

TEST(Layout, OfRequestsIsAsWrittenDown) {
  EXPECT_EQ(offsetof(Submission, operation), 8u);
  EXPECT_EQ(offsetof(Submission, mode), 12u);
  EXPECT_EQ(offsetof(Submission, place), 16u);
  EXPECT_EQ(offsetof(Submission, count), 20u);
  EXPECT_EQ(offsetof(Submission, block_offset), 24u);
  EXPECT_EQ(offsetof(Submission, block_bytes), 32u);
  EXPECT_EQ(offsetof(Submission, timeout_ns), 40u);
  EXPECT_EQ(offsetof(Submission, value), 48u);
  EXPECT_EQ(offsetof(Submission, flags), 56u);
  EXPECT_EQ(offsetof(Completion, code), 8u);
  EXPECT_EQ(offsetof(Completion, message_bytes), 12u);
  EXPECT_EQ(offsetof(CreateRecord, dtype), 8u);
  EXPECT_EQ(offsetof(CreateRecord, rank), 12u);
  EXPECT_EQ(offsetof(CreateRecord, shape), 16u);
  EXPECT_EQ(offsetof(CreateRecord, strides), 80u);
  EXPECT_EQ(offsetof(CreateRecord, name), 144u);
}

TEST(Layout, OfMessagesIsAsWrittenDown) {
  EXPECT_EQ(offsetof(MessageHeader, version), 4u);
  EXPECT_EQ(offsetof(MessageHeader, type), 8u);
  EXPECT_EQ(offsetof(MessageHeader, bytes), 12u);
  EXPECT_EQ(sizeof(Hello), 312u);
  EXPECT_EQ(offsetof(Hello, timeout_ns), 16u);
  EXPECT_EQ(offsetof(Hello, local_world_size), 24u);
  EXPECT_EQ(offsetof(Hello, guarantee_count), 28u);
  EXPECT_EQ(offsetof(Hello, guarantees), 32u);
  EXPECT_EQ(offsetof(Hello, label), 176u);
  EXPECT_EQ(offsetof(Hello, share), 240u);
  EXPECT_EQ(offsetof(Hello, share_use), 304u);
  EXPECT_EQ(sizeof(Welcome), 416u);
  EXPECT_EQ(offsetof(Welcome, place_count), 20u);
  EXPECT_EQ(offsetof(Welcome, token), 24u);
  EXPECT_EQ(offsetof(Welcome, region_bytes), 40u);
  EXPECT_EQ(offsetof(Welcome, read_only), 48u);
  EXPECT_EQ(offsetof(Welcome, places), 56u);
  EXPECT_EQ(offsetof(Refused, code), 16u);
  EXPECT_EQ(offsetof(Refused, message), 20u);
  EXPECT_EQ(sizeof(Refused), 520u);
  EXPECT_EQ(offsetof(SegmentMessage, offset), 24u);
  EXPECT_EQ(offsetof(SegmentMessage, bytes), 32u);
  EXPECT_EQ(sizeof(SegmentMessage), 40u);
  EXPECT_EQ(offsetof(StitchMessage, place), 16u);
  EXPECT_EQ(offsetof(StitchMessage, count), 20u);
  EXPECT_EQ(offsetof(StitchMessage, offset), 24u);
  EXPECT_EQ(offsetof(StitchMessage, bytes), 32u);
  EXPECT_EQ(offsetof(StitchMessage, at), 40u);
  EXPECT_EQ(offsetof(StitchMessage, pieces), 48u);
  EXPECT_EQ(sizeof(StitchMessage), 496u);
  EXPECT_EQ(sizeof(Bye), 16u);
  EXPECT_EQ(offsetof(Resume, session), 16u);
  EXPECT_EQ(offsetof(Resume, completions_seen), 20u);
  EXPECT_EQ(offsetof(Resume, token), 24u);
  EXPECT_EQ(offsetof(Resume, epoch), 40u);
  EXPECT_EQ(sizeof(Resume), 48u);
  EXPECT_EQ(offsetof(Resumed, session), 16u);
  EXPECT_EQ(offsetof(Resumed, epoch), 24u);
  EXPECT_EQ(sizeof(Resumed), 32u);
}

TEST(Layout, OfTheWordIsAsWrittenDown) {
  EXPECT_EQ(Word{.state = State::kClaimed}.packed(), 3u);
  EXPECT_EQ(Word{.state = State::kShared}.packed(), 4u);
  EXPECT_EQ(Word{.dirty = true}.packed(), 1u << 3);
  EXPECT_EQ(Word{.wanted = true}.packed(), 1u << 4);
  EXPECT_EQ(Word{.lent = true}.packed(), 1u << 5);
  EXPECT_EQ(Word{.readers = 1}.packed(), 1u << 8);
  EXPECT_EQ(Word{.writers = 1}.packed(), 1u << 24);
  EXPECT_EQ(Word{.incarnation = 1}.packed(), 1ull << 36);
  EXPECT_EQ(kRegionMagic, 0x3145434152524554u);
  EXPECT_EQ(kMessageMagic, 0x43525254u);
}

}  // namespace
}  // namespace terrace::shm
