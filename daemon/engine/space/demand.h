// SPDX-License-Identifier: Apache-2.0
// Who wants room in a tier, and what it waits for.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "mover/transfer.h"
#include "terrace/error.h"

namespace terrace::engine {

struct Demand {
  enum class Kind : std::uint8_t { kAcquire, kMove, kPin, kPrefetch, kCreate };

  std::uint64_t id = 0;
  SessionId member{};  // who asked; kPrefetch: nobody
  Kind kind{};
  bool planned = false;     // kPrefetch: by a plan, not by a hint
  std::int64_t due_ns = 0;  // `planned`: as in Expectation
  TierId tier{};            // where it is wanted
  Time deadline = kNever;
  std::vector<Handle> tensors;
  std::size_t fresh = 0;                  // kCreate: tensors that are to be created
  std::vector<Handle> wanted;             // leased copies whose end it waits for, to have their room
  std::uint64_t missing_bytes = 0;        // that it lacked in the tier when it was last looked at
  std::uint32_t seams_coming = 0;         // that were begun for it, and are not ready yet
  std::unique_ptr<Error> stitch_error{};  // of the last seam that was made for it; null: none failed

  bool is(Kind a) const { return kind == a; }
  // Of the write-backs that it waits for.
  mover::Class write_back_class() const {
    return is(Kind::kPrefetch) ? mover::Class::kPrefetch : mover::Class::kAwaitedWriteBack;
  }
};

}  // namespace terrace::engine
