// SPDX-License-Identifier: Apache-2.0
// A tier whose memory trainers map: segments of one session side by side in one address space. Implemented by memory/
// (DRAM) and device/ (HBM, or its emulation).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/fd.h"
#include "base/ids.h"
#include "terrace/error.h"
#include "tier/extent.h"

namespace terrace::tier {

class CudaContext;

class MappedTier {
 public:
  virtual ~MappedTier() = default;

  virtual Kind kind() const = 0;
  // Memory for one segment: zeroed, prefaulted, placed on the tier's node, sealed. `bytes` is a multiple of 2 MiB.
  // Thread-safe, and slow: for a worker. ResourceExhausted when the system has none.
  virtual Result<Fd> create_segment(std::uint64_t bytes) const = 0;
  // Maps a segment into the daemon at `offset` of the session's address space, which it extends. Thread-safe.
  // DataLoss: the driver says that the device is lost, and the segment's memory with it. After any other error it is as
  // it was.
  virtual Result<void> install(SessionId session, Extent extent, Fd segment) = 0;
  // Whoever copies to or from an installed segment for the first time does not wait for the kernel to find its pages.
  // Thread-safe, and slow: for a worker.
  virtual void map_pages(SessionId, Extent) const {}
  // The descriptor to hand to the session's trainer; borrowed, valid until removed.
  virtual int descriptor(SessionId session, std::uint64_t offset) const = 0;
  // Whether stitch() can be asked for. The same for life.
  virtual bool stitches() const { return false; }
  // Maps pieces of installed segments a second time, in their order, as one run of addresses at `seam`, whose offset is
  // kSeamsBegin or more and new. Where stitches(); thread-safe. ResourceExhausted: the system has no more mappings.
  virtual Result<void> stitch(SessionId /*session*/, Extent /*seam*/, std::span<const Extent> /*pieces*/) {
    return fail(ErrorCode::kUnimplemented, "this memory cannot be stitched");
  }
  // Unmaps a seam. Thread-safe.
  virtual void unstitch(SessionId, std::uint64_t /*offset*/) {}
  // Unmaps and closes the segment at `extent` (the trainer has unmapped it, or died); its pages are punched out first.
  virtual Result<void> remove(SessionId session, Extent extent) = 0;
  // Removes all that the session has.
  virtual void drop(SessionId session) = 0;
  // The daemon stops: what goes from now on keeps its bytes, for trainers that still hold leases on them.
  virtual void leave_bytes() = 0;
  // The daemon's own address of `offset`; valid for installed segments and seams only, until they are removed.
  virtual std::byte* address(SessionId session, std::uint64_t offset) const = 0;
  // The GPU whose memory this is, and which alone can reach its addresses; null: the CPU can.
  virtual CudaContext* cuda() const { return nullptr; }
  // That GPU's uuid, also where it failed before anything could be had of it; zeros: it is no GPU's.
  virtual std::array<std::uint8_t, 16> gpu() const { return {}; }
  // Why it is of no more use to this process; none while it is. DataLoss: what was in its memory is gone. Thread-safe.
  virtual std::optional<Error> failure() const { return std::nullopt; }
};

}  // namespace terrace::tier
