// SPDX-License-Identifier: Apache-2.0
// A request that brings a set of tensors somewhere, or makes room for new ones, while it is under way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/request.h"
#include "mover/transfer.h"
#include "shm/word.h"

namespace terrace::engine {

struct Admission {
  enum class Kind : std::uint8_t { kAcquire, kMove, kPin, kPrefetch, kCreate };
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

  std::uint64_t id = 0;
  RequestId request{};  // kPrefetch: none
  SessionId member{};   // who asked; kPrefetch: nobody
  Kind kind{};
  Phase phase = Phase::kWaiting;
  Modes modes;  // kAcquire; the others are as if they read
  std::uint32_t place = 0;
  std::size_t tier = 0;  // the place's
  Time started{};
  Time deadline = kNever;
  std::vector<Handle> tensors;
  std::vector<Slot> slots;          // theirs
  std::vector<TensorSpec> specs;    // kCreate
  std::vector<Handle> wanted;       // leased copies whose end it waits for, to have their room
  std::vector<Handle> awaited;      // of its set, leased by other members of the share
  std::uint64_t found_lives = 0;    // of the session, when its slots were found
  std::uint64_t seen_events = 0;    // the same, when it was last looked at
  std::uint64_t pending = 0;        // kAssembling: tensors that are not there yet
  std::uint64_t fetched = 0;        // tensors that had to be brought
  std::uint64_t missing_bytes = 0;  // that it lacked in the tier when it was last looked at
  bool waited = false;
  bool passing = false;     // kAcquire: as in Acquire
  bool planned = false;     // kPrefetch: by a plan, not by a hint
  bool late = false;        // kPrefetch: somebody waits for what it brings
  bool revoked = false;     // kPrefetch: it was taken back while it was on its way, and goes once it is there
  std::int64_t due_ns = 0;  // `planned`: as in Expectation
  bool behind = false;      // an earlier one is making room in the same tier: it may not take any
  Block block = Block::kNothing;
  std::unique_ptr<Error> stitch_error{};  // of the last seam that was made for it; null: none failed

  bool is(Kind a) const { return kind == a; }
  // Of the write-backs that it waits for.
  mover::Class write_back_class() const {
    return is(Kind::kPrefetch) ? mover::Class::kPrefetch : mover::Class::kAwaitedWriteBack;
  }
};

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
