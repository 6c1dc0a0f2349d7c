// SPDX-License-Identifier: Apache-2.0
// Shows that rings carry every entry once and in order between threads, refuse to overflow, and name an index that the
// other end cannot have; that logs lose their oldest entries and say how many leases they stood for; and that a
// region's header is believed only where it is right.
#include "shm/ring.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

#include "shm/log.h"
#include "shm/region.h"

namespace terrace::shm {
namespace {

struct Ring {
  RingIndex index{};
  std::array<Submission, 8> entries{};
  RingProducer<Submission> producer{index, entries.data(), 8};
  RingConsumer<Submission> consumer{index, entries.data(), 8};
};

TEST(Ring, CarriesInOrderAndRefusesToOverflow) {
  Ring ring;
  std::array<Submission, 8> out{};
  for (std::uint64_t round = 0; round < 100; ++round) {
    for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(ring.producer.push({.id = round * 8 + i}), true);
    ASSERT_EQ(ring.producer.push({.id = 99}), false);
    ASSERT_EQ(ring.consumer.pop(std::span(out).first(3)), 3u);
    ASSERT_EQ(out[2].id, round * 8 + 2);
    ASSERT_EQ(ring.consumer.pop(out), 5u);
    ASSERT_EQ(out[4].id, round * 8 + 7);
    ASSERT_EQ(ring.consumer.pop(out), 0u);
  }
}

TEST(Ring, CountsPassThirtyTwoBits) {
  RingIndex index{};
  std::array<Submission, 8> entries{};
  index.head = index.tail = 0xFFFFFFFE;
  RingProducer<Submission> producer(index, entries.data(), 8, 0xFFFFFFFE);
  RingConsumer<Submission> consumer(index, entries.data(), 8, 0xFFFFFFFE);
  for (std::uint64_t i = 0; i < 5; ++i) ASSERT_EQ(producer.push({.id = i}), true);
  std::array<Submission, 8> out{};
  ASSERT_EQ(consumer.pop(out), 5u);
  EXPECT_EQ(out[4].id, 4u);
}

TEST(Ring, NamesATailThatCannotBe) {
  Ring ring;
  ring.index.tail = 9;
  std::array<Submission, 8> out{};
  const auto popped = ring.consumer.pop(out);
  ASSERT_FALSE(popped.has_value());
  EXPECT_EQ(popped.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(popped.error().message.find("tail is 9"), std::string::npos) << popped.error().message;
  ring.index.tail = 0xFFFFFFFF;  // backwards
  EXPECT_FALSE(ring.consumer.pop(out).has_value());
}

TEST(Ring, NamesAHeadThatCannotBe) {
  Ring ring;
  ASSERT_EQ(ring.producer.push({.id = 1}), true);
  ring.index.head = 2;
  EXPECT_FALSE(ring.producer.push({.id = 2}).has_value());
  ring.index.head = 0xFFFFFF00;
  EXPECT_FALSE(ring.producer.room().has_value());
}

TEST(Ring, AConsumerThatSleepsIsWoken) {
  Ring ring;
  constexpr std::uint64_t kCount = 20'000;
  std::vector<std::uint64_t> got;
  std::thread reader([&] {
    std::array<Submission, 4> out{};
    while (got.size() < kCount) {
      const WaiterCount waiting(ring.index);
      const std::uint32_t seen = ring.index.tail.load(std::memory_order_seq_cst);
      const auto count = ring.consumer.pop(out);
      ASSERT_TRUE(count.has_value());
      for (std::size_t i = 0; i < *count; ++i) got.push_back(out[i].id);
      if (*count == 0) futex_wait(ring.index.tail, seen, std::chrono::seconds(60));
    }
  });
  for (std::uint64_t i = 0; i < kCount;) {
    const auto pushed = ring.producer.push({.id = i});
    if (!pushed) break;
    if (*pushed) {
      ++i;
      ring.producer.wake();
    } else {
      std::this_thread::yield();
    }
  }
  reader.join();
  ASSERT_EQ(got.size(), kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(got[i], i);
}

struct Log {
  LogIndex index{};
  std::vector<LogEntry> entries{kLogEntries};
};

TEST(Log, LosesTheOldestAndSaysHowManyThereWere) {
  Log log;
  LogReader reader(log.index, log.entries.data());
  ASSERT_TRUE(LogWriter::borrow(log.index));
  ASSERT_FALSE(LogWriter::borrow(log.index));
  LogWriter writer(log.index, log.entries.data());
  std::vector<LogEntry> out(kLogEntries);
  for (std::uint32_t i = 0; i < 10; ++i) writer.append({.slot = i, .mode = 0, .stamp = i});
  LogReader::Drained drained = reader.drain(out);
  ASSERT_EQ(drained.entries, 10u);
  EXPECT_EQ(drained.fast_leases, 10u);
  EXPECT_EQ(out[9].slot, 9u);
  for (std::uint32_t i = 0; i < kLogEntries + 5; ++i) writer.append({.slot = i, .mode = 1, .stamp = i});
  drained = reader.drain(out);
  ASSERT_EQ(drained.entries, kLogEntries);
  EXPECT_EQ(drained.fast_leases, kLogEntries + 5);
  EXPECT_EQ(out.front().slot, 5u);
  EXPECT_EQ(out.back().slot, kLogEntries + 4);
  EXPECT_EQ(reader.drain(out).entries, 0u);
  LogWriter::give_back(log.index);
  ASSERT_TRUE(LogWriter::borrow(log.index));
  LogWriter next(log.index, log.entries.data());
  next.append({.slot = 77, .mode = 0, .stamp = 0});
  ASSERT_EQ(reader.drain(out).entries, 1u);
  EXPECT_EQ(out[0].slot, 77u);
}

TEST(Log, ATailThatCannotBeCountsForNothing) {
  Log log;
  LogReader reader(log.index, log.entries.data());
  std::vector<LogEntry> out(4);
  log.index.tail = 100;
  EXPECT_EQ(reader.drain(out).entries, 4u);
  log.index.tail = 50;  // backwards
  EXPECT_EQ(reader.drain(out).fast_leases, 0u);
  log.index.tail = ~0ull;
  EXPECT_EQ(reader.drain(out).fast_leases, 0u);
  log.index.tail = 1;  // 2 more, modulo 2^64
  EXPECT_EQ(reader.drain(out).entries, 2u);
}

struct Region {
  explicit Region(std::uint32_t slots) {
    RegionHeader header{};
    lay_out(header, slots);
    bytes = header.region_bytes;
    base.reset(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
    std::memset(base.get(), 0, bytes);
    lay_out(*new (base.get()) RegionHeader{}, slots);
  }
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::uint64_t bytes = 0;
  std::unique_ptr<std::byte, Free> base;
};

TEST(Region, IsTakenApartWithoutOverlap) {
  const Region region(100);
  const auto view = open_region(region.base.get(), region.bytes);
  ASSERT_TRUE(view.has_value()) << view.error().message;
  EXPECT_EQ(view->table.size(), 100u);
  const auto* table_end = reinterpret_cast<std::byte*>(view->table.data() + view->table.size());
  EXPECT_LE(table_end, reinterpret_cast<std::byte*>(view->submission_index));
  EXPECT_LE(reinterpret_cast<std::byte*>(view->submissions + kRingEntries),
            reinterpret_cast<std::byte*>(view->completion_index));
  EXPECT_LE(reinterpret_cast<std::byte*>(view->completions + kRingEntries), view->logs);
  EXPECT_LE(reinterpret_cast<std::byte*>(view->log_entries(kLogCount - 1) + kLogEntries), view->arena.data());
  EXPECT_EQ(view->arena.data() + view->arena.size(), region.base.get() + region.bytes);
}

TEST(Region, AWrongHeaderIsNotBelieved) {
  const Region region(100);
  auto& header = *reinterpret_cast<RegionHeader*>(region.base.get());
  const auto refusal = [&](std::uint64_t bytes) {
    const auto opened = open_region(region.base.get(), bytes);
    if (opened) return std::string("none");
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
    return opened.error().message;
  };
  const auto refuses = [&](auto& field, std::uint64_t to, const std::string& what) {
    const auto right = std::exchange(field, static_cast<std::remove_reference_t<decltype(field)>>(to));
    const std::string found = refusal(region.bytes);
    EXPECT_NE(found.find(what), std::string::npos) << found;
    field = right;
  };
  EXPECT_EQ(refusal(8), "session region: 8 bytes hold no header");
  EXPECT_NE(refusal(region.bytes - 4096).find("offsets"), std::string::npos);
  refuses(header.magic, kRegionMagic + 1, "wrong magic number");
  refuses(header.version, kProtocolVersion + 1, "version " + std::to_string(kProtocolVersion + 1));
  refuses(header.table_slots, 0xFFFFFFFF, "for 4294967295 slots");
  refuses(header.region_bytes, region.bytes + 4096, "offsets");
  for (auto* offset : {&header.table_offset, &header.submissions_offset, &header.completions_offset,
                       &header.logs_offset, &header.arena_offset, &header.arena_bytes})
    refuses(*offset, *offset + 4096, "its offsets are not those of version");
  EXPECT_EQ(refusal(region.bytes), "none");
}

TEST(Futex, NoTimeIsNoWait) {
  std::atomic<std::uint32_t> word{5};
  futex_wait(word, 5, std::chrono::nanoseconds(0));
  futex_wait(word, 5, std::chrono::nanoseconds(-1));
}

}  // namespace
}  // namespace terrace::shm
