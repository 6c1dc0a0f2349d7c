// SPDX-License-Identifier: Apache-2.0
// What to give up when room is needed. Pure: it sees accesses and answers with an order; it moves nothing. One object
// per session and tier. LRU is the first; the learned plan comes beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/ids.h"
#include "base/time.h"

namespace terrace::engine {

class Policy {
 public:
  virtual ~Policy() = default;

  // A copy came into the tier, was used there, or left it. Each is O(log n) or better.
  virtual void arrived(Slot slot, Time now) = 0;
  virtual void used(Slot slot, Time now) = 0;
  virtual void left(Slot slot) = 0;
  // Offers the copies from the first to give up to the last, until `take` returns false. The order is total and depends
  // on nothing but the calls above.
  virtual void offer_victims(const std::function<bool(Slot)>& take) const = 0;
};

// Least recently used first.
std::unique_ptr<Policy> make_lru_policy();

}  // namespace terrace::engine
