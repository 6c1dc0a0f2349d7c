// SPDX-License-Identifier: Apache-2.0
// Runs transfers and segment orders on the ring, the workers and the tiers, and never hands out a byte that it did not
// check (DESIGN decisions 6, 7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "mover/ring.h"
#include "mover/transfer.h"
#include "mover/workers.h"
#include "terrace/error.h"
#include "tier/block/block_file.h"
#include "tier/mapped_tier.h"

namespace terrace::mover {

// The configured tiers, by TierId; borrowed. `mapped` is null where the tier is the block tier.
struct Tiers {
  std::vector<tier::MappedTier*> mapped;
  tier::BlockFile* block = nullptr;  // null: there is none
};

// What the mover got from the system, for the start report.
struct MoverFacts {
  unsigned queue_depth = 0;
  unsigned copiers = 0;
  bool registered_files = false;       // else every I/O looks its file up
  bool registered_buffers = false;     // slices of 64 MiB may be registered; else every I/O pins its pages anew
  std::uint64_t registered_bytes = 0;  // by now: each slice is registered when it is first used
  bool deferred_completions = false;   // see Ring::deferred()
  std::uint64_t pinned_bytes = 0;      // of the sessions' DRAM, for the GPUs' copy engines; by now
  std::uint64_t refused_bytes = 0;     // of it that could not be pinned, since the start
};

// What it has done since it began.
struct MoverCounts {
  std::uint64_t block_read_bytes = 0;
  std::uint64_t block_written_bytes = 0;
  std::uint64_t copied_bytes = 0;       // between mapped tiers, and zero-filled
  std::uint64_t io_retries = 0;         // interrupted, refused for the moment, short, or failed the first time
  std::uint64_t io_errors = 0;          // operations that failed for good
  std::uint64_t reread_chunks = 0;      // did not match their checksum the first time
  std::uint64_t mismatched_chunks = 0;  // nor the second time
};

// Everything here is the reactor's. Transfers are taken in chunks of 1 MiB (of up to 4 where they are only copied), the
// most urgent transfer's first; what one class asks first is begun first. Where a tier is a GPU's, DRAM that comes is
// pinned for it, and copies to and from it run on its streams.
class Mover {
 public:
  struct Options {
    unsigned queue_depth = 64;                   // I/Os under way on the block tier, of all transfers together
    unsigned chunks_max = 128;                   // begun, those included that are summed or copied; at most 1024
    std::uint64_t inline_bytes_max = 64 * 1024;  // chunks so small are copied and checked on the reactor itself
  };
  // Gives the ring its files and watches the workers; both outlive the mover. Errors: the system's, or a GPU's.
  static Result<std::unique_ptr<Mover>> create(Ring& ring, Workers& workers, Tiers tiers, const Options& options);
  // Waits for what is in flight (running the ring); what has not begun is dropped.
  virtual ~Mover() = default;

  // Begins a copy; its outcome comes from take_transfers(), exactly once, possibly at once. Aborts on what only a
  // defect could ask: bytes that do not fit their location, a copy from block to block, or with a block tier that is
  // not owned.
  virtual void start(const Transfer& transfer) = 0;
  // Begins to add or remove a segment; orders are done in the order in which they came.
  virtual void start(const SegmentOrder& order) = 0;
  // Gives up all that a session has in the mapped tiers, before any segment that is ordered after this is made; nothing
  // is reported. MappedTier::drop() itself must not be called behind the mover's back: it knows the memory's pages.
  virtual void drop(SessionId session) = 0;

  // What has come to an end since the last call. Look after start() and after every Ring::run_once().
  virtual std::vector<TransferDone> take_transfers() = 0;
  virtual std::vector<SegmentDone> take_segments() = 0;

  // Transfers, orders and drops that have not come to an end: the daemon stops cleanly at zero.
  virtual std::size_t in_flight() const = 0;
  virtual MoverFacts facts() const = 0;
  virtual const MoverCounts& counts() const = 0;
};

}  // namespace terrace::mover
