// SPDX-License-Identifier: Apache-2.0
// The two ends of an access log. No correctness rests on one: the writer overwrites its oldest entries when the reader
// is slow, and the reader takes whatever is there for a hint.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "shm/layout.h"

namespace terrace::shm {

// What entries are stamped with: a counter that all processors share, or 0 where there is none.
inline std::uint64_t stamp_now() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  std::uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return 0;
#endif
}

// The end of the thread that a log is lent to.
class LogWriter {
 public:
  LogWriter() = default;
  // Goes on where the log's last writer stopped.
  LogWriter(LogIndex& index, LogEntry* entries)
      : index_(&index), entries_(entries), tail_(index.tail.load(std::memory_order_acquire)) {}

  explicit operator bool() const { return index_ != nullptr; }
  void append(const LogEntry& entry) {
    LogEntry& place = entries_[tail_ % kLogEntries];
    // Relaxed atomics: the reader may be copying the entry that is overwritten.
    std::atomic_ref(place.slot).store(entry.slot, std::memory_order_relaxed);
    std::atomic_ref(place.mode).store(entry.mode, std::memory_order_relaxed);
    std::atomic_ref(place.stamp).store(entry.stamp, std::memory_order_relaxed);
    index_->tail.store(++tail_, std::memory_order_release);
  }

  // Borrows a free log for the calling thread; false if another has it.
  static bool borrow(LogIndex& index) {
    std::uint32_t free = 0;
    return index.lent.load(std::memory_order_relaxed) == 0 &&
           index.lent.compare_exchange_strong(free, 1, std::memory_order_acquire, std::memory_order_relaxed);
  }
  static void give_back(LogIndex& index) { index.lent.store(0, std::memory_order_release); }

 private:
  LogIndex* index_ = nullptr;
  LogEntry* entries_ = nullptr;
  std::uint64_t tail_ = 0;
};

// The daemon's end. Everything that it reads is unverified.
class LogReader {
 public:
  struct Drained {
    std::size_t entries = 0;        // written to `out`, oldest first
    std::uint64_t fast_leases = 0;  // what they and the overwritten ones stand for
  };

  LogReader() = default;
  LogReader(const LogIndex& index, const LogEntry* entries) : index_(&index), entries_(entries) {}

  // Takes what is new, at most the newest out.size() entries. A tail that went backwards, or jumped farther than any
  // writer could, counts for nothing.
  Drained drain(std::span<LogEntry> out) {
    const std::uint64_t tail = index_->tail.load(std::memory_order_acquire);
    const std::uint64_t fresh = tail - position_;
    position_ = tail;
    if (fresh > kFreshMax) return {};
    const std::uint64_t count = std::min<std::uint64_t>({fresh, kLogEntries, out.size()});
    for (std::uint64_t i = 0; i < count; ++i) {
      const LogEntry& place = entries_[(tail - count + i) % kLogEntries];
      out[i] = {.slot = load(place.slot), .mode = load(place.mode), .stamp = load(place.stamp)};
    }
    return {.entries = count, .fast_leases = fresh};
  }

 private:
  static constexpr std::uint64_t kFreshMax = 1ull << 32;
  template <typename T>
  static T load(const T& value) {
    return std::atomic_ref(const_cast<T&>(value)).load(std::memory_order_relaxed);
  }

  const LogIndex* index_ = nullptr;
  const LogEntry* entries_ = nullptr;
  std::uint64_t position_ = 0;
};

}  // namespace terrace::shm
