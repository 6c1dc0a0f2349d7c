// SPDX-License-Identifier: Apache-2.0
// The two ends of a ring in the session region. Each end keeps its own index privately and authoritatively; of the
// other it only reads the index, believes nothing, and copies each entry once. So the daemon can use an end whose
// memory an attacker writes, and so can the client. Neither end is thread-safe: callers lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "shm/futex.h"
#include "shm/layout.h"
#include "terrace/error.h"

namespace terrace::shm {

// The end that writes entries and owns the tail.
template <typename Entry>
class RingProducer {
 public:
  RingProducer() = default;
  // A ring of `size` entries at `entries`, both outliving this. `start`: entries that were ever pushed (0 in a new
  // ring).
  RingProducer(RingIndex& index, Entry* entries, std::uint32_t size = kRingEntries, std::uint32_t start = 0)
      : index_(&index), entries_(entries), size_(size), tail_(start) {}

  // Entries that can be pushed now. kInvalidArgument if the other end's head cannot be: the session is to be ended.
  Result<std::uint32_t> room() const {
    const std::uint32_t used = tail_ - index_->head.load(std::memory_order_acquire);
    if (used > size_) {
      return fail(ErrorCode::kInvalidArgument, "ring: the consumer's head is " + std::to_string(tail_ - used) +
                                                   ", which is not within " + std::to_string(size_) +
                                                   " entries before the tail " + std::to_string(tail_));
    }
    return size_ - used;
  }
  // Appends and publishes one entry. False: the ring is full. Errors as room().
  Result<bool> push(const Entry& entry) {
    const Result<std::uint32_t> free = room();
    if (!free) return std::unexpected(free.error());
    if (*free == 0) return false;
    std::memcpy(static_cast<void*>(entries_ + tail_ % size_), &entry, sizeof(Entry));
    index_->tail.store(++tail_, std::memory_order_seq_cst);  // before wake() reads `waiters`, is_polled() `polled`
    return true;
  }
  // Wakes whoever sleeps on the tail (see WaiterCount); costs a system call only if somebody says so.
  void wake() {
    if (index_->waiters.load(std::memory_order_seq_cst) != 0) futex_wake(index_->tail);
  }
  // Before the consumer has the ring, for one that writes no such word.
  void set_polled(bool polled) { index_->polled.store(polled ? 1 : 0, std::memory_order_seq_cst); }
  // The consumer sees what was pushed by itself (see RingConsumer::set_polled).
  bool is_polled() const { return index_->polled.load(std::memory_order_seq_cst) != 0; }
  std::uint32_t tail() const { return tail_; }

 private:
  RingIndex* index_ = nullptr;
  Entry* entries_ = nullptr;
  std::uint32_t size_ = 0;
  std::uint32_t tail_ = 0;
};

// The end that reads entries and owns the head.
template <typename Entry>
class RingConsumer {
 public:
  RingConsumer() = default;
  // `start`: entries that were ever popped.
  RingConsumer(RingIndex& index, const Entry* entries, std::uint32_t size = kRingEntries, std::uint32_t start = 0)
      : index_(&index), entries_(entries), size_(size), head_(start) {}

  // Entries that wait. kInvalidArgument if the other end's tail cannot be: the session is to be ended.
  Result<std::uint32_t> waiting() const {
    const std::uint32_t tail = index_->tail.load(std::memory_order_seq_cst);  // after set_polled() wrote `polled`
    if (tail - head_ > size_) {
      return fail(ErrorCode::kInvalidArgument, "ring: the producer's tail is " + std::to_string(tail) +
                                                   ", which is not within " + std::to_string(size_) +
                                                   " entries after the head " + std::to_string(head_));
    }
    return tail - head_;
  }
  // Copies up to out.size() entries, each once, and gives their places back. How many; 0: none wait. The copies are
  // still the other end's word for it: validate them. Errors as waiting().
  Result<std::size_t> pop(std::span<Entry> out) {
    const Result<std::uint32_t> ready = waiting();
    if (!ready) return std::unexpected(ready.error());
    const std::size_t count = *ready < out.size() ? *ready : out.size();
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(static_cast<void*>(&out[i]), entries_ + (head_ + static_cast<std::uint32_t>(i)) % size_,
                  sizeof(Entry));
    }
    asm volatile("" ::: "memory");  // so that nothing is read from the ring again where the copy is used
    head_ += static_cast<std::uint32_t>(count);
    if (count != 0) index_->head.store(head_, std::memory_order_release);
    return count;
  }
  // Tells the producer whether it needs to wake this end. After false, look at waiting() once more before sleeping:
  // what was pushed until then may have woken nobody.
  void set_polled(bool polled) { index_->polled.store(polled ? 1 : 0, std::memory_order_seq_cst); }
  std::uint32_t head() const { return head_; }

 private:
  RingIndex* index_ = nullptr;
  const Entry* entries_ = nullptr;
  std::uint32_t size_ = 0;
  std::uint32_t head_ = 0;
};

// While it lives the producer knows that somebody may sleep on the tail. Take it, look once more whether what is
// awaited is there, then futex_wait() on the tail seen before that look.
class WaiterCount {
 public:
  explicit WaiterCount(RingIndex& index) : index_(index) { index_.waiters.fetch_add(1, std::memory_order_seq_cst); }
  WaiterCount(const WaiterCount&) = delete;
  WaiterCount& operator=(const WaiterCount&) = delete;
  ~WaiterCount() { index_.waiters.fetch_sub(1, std::memory_order_seq_cst); }

 private:
  RingIndex& index_;
};

}  // namespace terrace::shm
