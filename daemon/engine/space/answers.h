// SPDX-License-Identifier: Apache-2.0
// What comes of making room.
#pragma once

#include <cstdint>

namespace terrace::engine {

// Of a demand for room.
enum class Room : std::uint8_t {
  kReady,    // it is there
  kWait,     // it is being made
  kLeases,   // it can only come from leases that end
  kOthers,   // other members of the share hold leases
  kRefused,  // it cannot be had
};

// Of a copy that is to go.
enum class Eviction : std::uint8_t {
  kDropped,
  kStarted,
  kDeferred,  // room below is being made, or a former daemon is not done there: to be tried again at the next event
  kRefused,   // it is leased or pinned
};

}  // namespace terrace::engine
