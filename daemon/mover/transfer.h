// SPDX-License-Identifier: Apache-2.0
// What the engine asks of the layers below, and what they answer: values only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "terrace/error.h"
#include "tier/extent.h"

namespace terrace::mover {

// What transfers share and queue for.
enum class LinkKind : std::uint8_t {
  kHostToDevice,  // unit: device index
  kDeviceToHost,  // unit: device index
  kBlockRead,     // unit: 0
  kBlockWrite,    // unit: 0
  kMemcpy,        // within one tier, and zero-filling; unit: 0
};
inline constexpr std::size_t kLinkKinds = 5;

struct Link {
  LinkKind kind{};
  std::uint8_t unit = 0;
  auto operator<=>(const Link&) const = default;
};

// Who waits, most urgent first (DESIGN decision 10).
enum class Class : std::uint8_t { kDemand, kLatePrefetch, kAwaitedWriteBack, kPrefetch, kCleaning };
inline constexpr std::size_t kClasses = 5;

// One copy of one tensor's bytes from location to location; both are reserved for it until it is done, and whatever the
// outcome is, the source stays as it is.
struct Transfer {
  TransferId id{};
  Link link{};
  Class urgency = Class::kDemand;
  Time deadline = kNever;    // of whoever waits; orders within the class
  bool zero_fill = false;    // there is no source: the target becomes zeros
  bool prove = false;        // nor here: the target, on the block tier, is written and read back; nothing is left there
  std::uint64_t tensor = 0;  // the tensor's number, never used twice: binds block checksums together with
  std::uint64_t version = 0;  // the content version, and the chunk's offset
  std::uint64_t bytes = 0;    // of the tensor; locations are rounded up to 4 KiB
  tier::Location from{};
  tier::Location to{};
};

// What became of it. Errors: kDataLoss (the source's checksums do not match), kInternal or kResourceExhausted with
// system_error (the device's own errno); `failed` names the tier at fault.
struct TransferDone {
  TransferId id{};
  Result<void> result;
  TierId failed{};
};

// A session's segment in a mapped tier is to come or to go, or a seam is.
struct SegmentOrder {
  enum class Kind : std::uint8_t { kAdd, kRemove, kStitch, kUnstitch };
  Kind kind{};
  SessionId session{};
  TierId tier{};
  tier::Extent extent;  // of the session's address space: a segment is always at its end; a seam from kSeamsBegin on
  std::vector<tier::Extent> pieces{};  // kStitch: where the seam's pages lie, in order
};

struct SegmentDone {
  SegmentOrder order;
  Result<void> result;
};

}  // namespace terrace::mover
