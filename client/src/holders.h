// SPDX-License-Identifier: Apache-2.0
// Who holds something that is to be closed: counted without a lock (a lock could be held across a fork) and without a
// cache line that threads take from each other, since every lease counts here twice. Once it is shut, whoever is to
// destroy what is held looks now and then whether anybody is left.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace terrace::client {

// Open, and held by its maker. Each processor has a stripe (as far as there are enough) in which its threads count
// those that came and those that left, both only ever upwards: so whoever reads first who left, and then who came,
// never finds it empty while somebody holds it, wherever holders come and leave meanwhile (McKenney's SRCU counts its
// readers like this). To leave is the last that a holder does here, so that it can be destroyed as soon as it is found
// empty. Thread-safe.
class Holders {
 public:
  Holders() { stripes_[0].came.store(1, std::memory_order_relaxed); }
  ~Holders() = default;
  Holders(const Holders&) = delete;
  Holders& operator=(const Holders&) = delete;

  // One more, by somebody who holds it.
  void add() { own().came.fetch_add(1, std::memory_order_relaxed); }

  // One more, by somebody who may not hold it. False: it is shut.
  bool enter() {
    if (shut()) return false;
    own().came.fetch_add(1, std::memory_order_seq_cst);
    if (!shut()) return true;
    leave();
    return false;
  }

  // One less.
  void leave() noexcept { own().left.fetch_add(1, std::memory_order_release); }

  // Nobody enters any more. True: it was open until now. The caller holds it.
  bool shut_off() { return !shut_.exchange(true, std::memory_order_seq_cst); }
  bool shut() const { return shut_.load(std::memory_order_seq_cst); }

  // How many hold it, about now; none for good if that is 0 after it was shut.
  std::uint64_t count() const {
    const std::uint64_t gone = sum(&Stripe::left);
    return sum(&Stripe::came) - gone;
  }

 private:
  static constexpr std::size_t kStripes = 64;
  struct alignas(64) Stripe {
    std::atomic<std::uint64_t> came{0};
    std::atomic<std::uint64_t> left{0};
  };

  // Nothing to be made for a new thread, and no system call: glibc 2.35 and later have the number in memory that the
  // kernel writes. Without that (GLIBC_TUNABLES can switch it off) it costs what the system takes to tell it.
  Stripe& own() { return stripes_[static_cast<unsigned>(::sched_getcpu()) % kStripes]; }
  std::uint64_t sum(std::atomic<std::uint64_t> Stripe::* counter) const {
    std::uint64_t sum = 0;
    for (const Stripe& stripe : stripes_) sum += (stripe.*counter).load(std::memory_order_seq_cst);
    return sum;
  }

  std::array<Stripe, kStripes> stripes_;
  alignas(64) std::atomic<bool> shut_{false};
};

}  // namespace terrace::client
