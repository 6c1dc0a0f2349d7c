// SPDX-License-Identifier: Apache-2.0
// What to give up when room is needed. Pure: it sees accesses, and what is foreseen, and answers with an order; it
// moves nothing. One object per session and tier.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

#include "base/ids.h"
#include "base/time.h"

namespace terrace::engine {

// What is foreseen of a copy.
struct Expectation {
  // Of its next use, in nanoseconds of the session's compute: numbers of one session can be compared, whatever tensors
  // they are of. kUnforeseen: nothing is known of it.
  std::int64_t next_ns = std::numeric_limits<std::int64_t>::max();
  bool give_up = false;  // the plan has it go before then
  bool operator==(const Expectation&) const = default;
};
inline constexpr std::int64_t kUnforeseen = std::numeric_limits<std::int64_t>::max();

class Policy {
 public:
  virtual ~Policy() = default;

  // A copy came into the tier, was used there, or left it. Each is O(log n) or better.
  virtual void arrived(Slot slot, Time now) = 0;
  virtual void used(Slot slot, Time now) = 0;
  virtual void left(Slot slot) = 0;
  // What is foreseen of a slot, whether it has a copy in the tier just now or not. Stands until something else is.
  virtual void expect(Slot, Expectation) {}
  virtual Expectation expected(Slot) const { return {}; }
  // Offers the copies from the first to give up to the last, until `take` returns false. The order is total and depends
  // on nothing but the calls above.
  virtual void offer_victims(const std::function<bool(Slot)>& take) const = 0;
};

// Least recently used first.
std::unique_ptr<Policy> make_lru_policy();

// For what nothing is foreseen of: neither a scan nor a loop flushes it, and it asks nothing of the capacity.
std::unique_ptr<Policy> make_scan_resistant_policy();
// The same, whose uses are numbered anew after so many, and not after four billion.
std::unique_ptr<Policy> make_scan_resistant_policy_counting_to(std::uint32_t uses_max);

// What the plan has go, then what nothing is foreseen of, as that policy would, then the farthest next use first.
std::unique_ptr<Policy> make_next_use_policy();

// Scan-resistant: S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: FIFO queues are all you need for cache eviction, SOSP 2023).
std::unique_ptr<Policy> make_s3_fifo_policy();

// Of a tier of homes, whose copies are never given up: by slot, whatever they are used for.
std::unique_ptr<Policy> make_home_policy();

}  // namespace terrace::engine
