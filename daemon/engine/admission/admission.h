// SPDX-License-Identifier: Apache-2.0
// A request that brings a set of tensors somewhere, or makes room for new ones, while it is under way.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/space/answers.h"
#include "engine/space/demand.h"
#include "engine/values/request.h"
#include "shm/word.h"

namespace terrace::engine {

struct Admission : Demand {
  enum class Phase : std::uint8_t {
    kWaiting,     // nothing is reserved
    kAssembling,  // everything is reserved, and on its way
  };

  // Why it waits.
  enum class Block : std::uint8_t {
    kNothing,
    kBusy,    // somebody else is moving one of its tensors, or waits for its leases
    kSpace,   // room is being made
    kLeases,  // room can only come from leases that end
    kOthers,  // other members of the share hold leases on its tensors
  };

  RequestId request{};  // kPrefetch: none
  Phase phase = Phase::kWaiting;
  Modes modes;  // kAcquire; the others are as if they read
  std::uint32_t place = 0;
  Time started{};
  std::vector<Slot> slots;        // of its tensors
  std::vector<TensorSpec> specs;  // kCreate
  std::vector<Handle> awaited;    // of its set, leased by other members of the share
  std::uint64_t found_lives = 0;  // of the session, when its slots were found
  std::uint64_t seen_events = 0;  // the same, when it was last looked at
  std::uint64_t pending = 0;      // kAssembling: tensors that are not there yet
  std::uint64_t fetched = 0;      // tensors that had to be brought
  bool waited = false;
  bool passing = false;  // kAcquire: as in Acquire
  bool late = false;     // kPrefetch: somebody waits for what it brings
  bool revoked = false;  // kPrefetch: it was taken back while it was on its way, and goes once it is there
  bool behind = false;   // an earlier one is making room in the same tier: it may not take any
  Block block = Block::kNothing;
};

// Why an admission waits to which this was answered.
inline Admission::Block block_of(Room room) {
  switch (room) {
    case Room::kReady:
      return Admission::Block::kNothing;
    case Room::kLeases:
      return Admission::Block::kLeases;
    case Room::kOthers:
      return Admission::Block::kOthers;
    default:
      return Admission::Block::kSpace;
  }
}

// What a set has no copies of in the tier that it is brought to, in the set's order.
struct Missing {
  std::vector<Slot> slots;
  std::vector<std::uint64_t> sizes;    // bytes
  std::vector<std::uint64_t> offsets;  // once there is room
  void clear() {
    slots.clear();
    sizes.clear();
    offsets.clear();
  }
};

}  // namespace terrace::engine
