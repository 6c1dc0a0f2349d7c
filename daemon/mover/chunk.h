// SPDX-License-Identifier: Apache-2.0
// One chunk of a transfer on its way: copied, or checksummed and written, or read and checked; a GPU's end of it by the
// GPU's own streams.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mover/chunk_step.h"
#include "mover/cuda_links.h"
#include "mover/io_queue.h"
#include "mover/mover.h"
#include "mover/pinned_memory.h"
#include "mover/registered_buffers.h"
#include "mover/ring.h"
#include "mover/workers.h"
#include "terrace/error.h"
#include "tier/block/block_file.h"
#include "tier/extent.h"

namespace terrace::mover {

// What a chunk is to do. Addresses are the chunk's own, `pieces` the whole tensor's on the block tier.
struct ChunkWork {
  Path path{};
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::uint64_t bytes = 0;         // of the tensor, in this chunk
  std::uint64_t padded_bytes = 0;  // up to 4 KiB: what is read, written and zeroed
  const tier::Pieces* pieces = nullptr;
  std::uint64_t entry = 0;  // in the checksum table
  tier::ChunkName name;
  CudaLink* from_gpu = nullptr;  // whose memory `from` is; null: the CPU's (so for `to`)
  CudaLink* to_gpu = nullptr;
  bool pinned = false;  // the CPU's end is: the GPU reads and writes it itself
  Class urgency{};
};

// The largest chunk that is only copied, by a GPU or by the CPU. All others have at most tier::kChunkBytes.
inline constexpr std::uint64_t kCopyChunkBytes = CudaLink::kOverlapBytesMax;
// The same where nobody waits, between pinned memory and a GPU: the link takes 1 % longer than for all at once, and 3 %
// longer in pieces of 4 MiB. What somebody waits for may have to wait until a piece that was begun has ended.
inline constexpr std::uint64_t kUnawaitedChunkBytes = 4 * kCopyChunkBytes;

class Chunk;

// Whoever gives chunks their work.
class ChunkOwner {
 public:
  virtual ~ChunkOwner() = default;
  // The chunk has come to its end, possibly inside start(); it may be started again.
  virtual void chunk_done(Chunk& chunk, Result<void> result) = 0;
};

// One of a fixed number, used again and again. The reactor's, except run().
class Chunk final : public Completion, public Job, public IoWaiter, public CudaWaiter, public Later {
 public:
  struct Surroundings {
    Ring& ring;
    Workers& workers;
    IoQueue& io;
    RegisteredBuffers& buffers;
    const PinnedMemory& pinned;
    tier::BlockFile* block;
    MoverCounts& counts;
    ChunkOwner& owner;
    std::uint64_t inline_bytes_max;
    bool spare_is_pinned;
  };
  // `index`: whatever the owner knows it by. `spare`: kChunkBytes of the daemon's own memory, page-aligned, for what
  // must be read again where no client can write, and for what is on its way between a GPU and a disk, or memory that
  // is not pinned. Where there are GPUs it is pinned.
  Chunk(const Surroundings& surroundings, std::size_t index, std::byte* spare)
      : surroundings_(surroundings), index_(index), spare_(spare) {}

  std::size_t index() const { return index_; }
  // Whether what failed last was a GPU.
  bool gpu_failed() const { return gpu_failed_; }

  void start(const ChunkWork& work);

  void completed(int result, bool more) override;
  void run() override;
  void done() override { take(outcome()); }
  void copied(Result<void> result) override;
  void admitted() override { continue_io(); }
  void run_later() override { take(Event::kDone); }

 private:
  Way way() const;
  // The one place where a step follows another (next_move()).
  void take(Event event);
  void compute();
  Event outcome();
  void begin_gpu();
  Result<void> begin_gpu_copies(CudaLane& lane);
  void begin_io();
  void continue_io();
  Event count_io(int result);
  void finish();
  void fail_with(Action action);
  Result<void> io_failure() const;
  Result<void> short_file() const;
  Result<void> mismatch() const;
  void end(Result<void> result);
  tier::BlockFile::Piece next_piece() const;

  Surroundings surroundings_;
  std::size_t index_;
  std::byte* spare_;
  ChunkWork work_;
  Step step_ = Step::kIdle;
  const std::byte* source_ = nullptr;  // of what is summed and written
  Result<void> gpu_result_;            // of the copies that are awaited, as far as it is known
  bool gpu_failed_ = false;
  std::byte* target_ = nullptr;    // of the read in progress
  std::uint64_t io_bytes_ = 0;     // read or written so far
  std::uint64_t asked_bytes_ = 0;  // of the operation in flight
  int io_error_ = 0;               // of the last one that was refused
  unsigned retries_ = 0;
  std::uint64_t sum_ = 0;  // as computed, by run(): of a pattern, how many of its words came back otherwise
};

}  // namespace terrace::mover
