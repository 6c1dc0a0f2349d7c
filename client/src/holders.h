// SPDX-License-Identifier: Apache-2.0
// Who holds something that is to be closed: counted without a lock (a lock could be held across a fork) and without a
// cache line that threads take from each other, since every lease counts here twice. Once it is shut, the last holder
// to leave knows it.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace terrace::client {

// Open, and held by its maker. Each processor has a stripe (as far as there are enough) in which its threads count
// those that came and those that left, both only ever upwards: so whoever reads first who left, and then who came,
// never finds it empty while somebody holds it, wherever holders come and leave meanwhile (McKenney's SRCU counts its
// readers like this). Thread-safe.
class Holders {
 public:
  Holders() { stripes_[0].came.store(1, std::memory_order_relaxed); }
  ~Holders() = default;
  Holders(const Holders&) = delete;
  Holders& operator=(const Holders&) = delete;

  // One more, by somebody who holds it.
  void add() { own().came.fetch_add(1, std::memory_order_relaxed); }

  enum class Entry : std::uint8_t {
    kHolds,
    kShut,      // it is not to be had any more
    kShutLast,  // nor by anybody else: as where leave() gives true
  };
  // One more, by somebody who may not hold it.
  Entry enter() {
    if (shut_.load(std::memory_order_relaxed)) return Entry::kShut;
    own().came.fetch_add(1, std::memory_order_seq_cst);
    if (!shut_.load(std::memory_order_seq_cst)) return Entry::kHolds;
    return leave() ? Entry::kShutLast : Entry::kShut;
  }

  // One less. True: it was shut, and that was the last one; to nobody else.
  bool leave() noexcept {
    own().left.fetch_add(1, std::memory_order_seq_cst);
    return was_last();
  }
  // The same where this may be destroyed as soon as nobody holds it: drain() waits for whoever is still in here, and
  // the last one calls `if_last` before.
  template <typename Action>
  bool leave(const Action& if_last) noexcept {
    Stripe& stripe = own();
    stripe.left.fetch_add(1 + kLeaving, std::memory_order_seq_cst);
    const bool last = was_last();
    if (last) if_last();
    stripe.left.fetch_sub(kLeaving, std::memory_order_release);
    return last;
  }

  // Whether it was open until now. The caller still holds it, and leaves next.
  bool shut() { return !shut_.exchange(true, std::memory_order_seq_cst); }

  // After somebody was the last: waits until nobody is inside leave(if_last), so that this can be destroyed.
  void drain() const {
    for (const Stripe& stripe : stripes_)
      while (stripe.left.load(std::memory_order_acquire) >= kLeaving) std::this_thread::yield();
  }

  // How many hold it, about now.
  std::uint64_t count() const {
    const std::uint64_t gone = left();
    return came() - gone;
  }

 private:
  static constexpr std::size_t kStripes = 64;
  static constexpr std::uint64_t kLeaving = std::uint64_t{1} << 48;  // threads inside leave(), above the count
  struct alignas(64) Stripe {
    std::atomic<std::uint64_t> came{0};
    std::atomic<std::uint64_t> left{0};
  };

  // Nothing to be made for a new thread, and no system call: glibc 2.35 and later have the number in memory that the
  // kernel writes. Without that (GLIBC_TUNABLES can switch it off) it costs what the system takes to tell it.
  Stripe& own() { return stripes_[static_cast<unsigned>(::sched_getcpu()) % kStripes]; }
  std::uint64_t left() const {
    std::uint64_t sum = 0;
    for (const Stripe& stripe : stripes_) sum += stripe.left.load(std::memory_order_seq_cst) % kLeaving;
    return sum;
  }
  std::uint64_t came() const {
    std::uint64_t sum = 0;
    for (const Stripe& stripe : stripes_) sum += stripe.came.load(std::memory_order_seq_cst);
    return sum;
  }
  bool was_last() {
    if (!shut_.load(std::memory_order_seq_cst)) return false;
    const std::uint64_t gone = left();
    return came() == gone && !last_.exchange(true);
  }

  std::array<Stripe, kStripes> stripes_;
  alignas(64) std::atomic<bool> shut_{false};
  std::atomic<bool> last_{false};
};

}  // namespace terrace::client
