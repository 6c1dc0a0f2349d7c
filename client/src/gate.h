// SPDX-License-Identifier: Apache-2.0
// Who is inside when something is closed: calls enter and leave without a lock (a lock could be held across a fork),
// and the last one out knows it.
#pragma once

#include <atomic>
#include <cstdint>

namespace terrace::client {

// Open, with its maker inside. Thread-safe.
class Gate {
 public:
  // False once it is shut.
  bool enter() {
    std::uint64_t seen = state_.load(std::memory_order_relaxed);
    do {
      if ((seen & kShut) != 0) return false;
    } while (!state_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed));
    return true;
  }
  // Whether that was the last one to leave; nobody enters afterwards.
  bool leave() { return state_.fetch_sub(1, std::memory_order_acq_rel) == (kShut | 1); }
  // Whether it was open until now. Its maker is still inside, and leaves next.
  bool shut() { return (state_.fetch_or(kShut, std::memory_order_acq_rel) & kShut) == 0; }

 private:
  static constexpr std::uint64_t kShut = std::uint64_t{1} << 63;
  std::atomic<std::uint64_t> state_{1};
};

}  // namespace terrace::client
