// SPDX-License-Identifier: Apache-2.0
// A transfer in progress, and the choice of its path.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mover/chunk.h"
#include "mover/transfer.h"
#include "terrace/error.h"

namespace terrace::mover {

// The one choice of how bytes travel. `block`: the block tier's id; one that no tier has where there is none.
Path route(const Transfer& transfer, TierId block);

// Between addresses: whose they are.
struct Ends {
  CudaLink* from_gpu = nullptr;  // as ChunkWork's
  CudaLink* to_gpu = nullptr;
  bool pinned = false;
  unsigned copiers = 1;  // threads that share what the CPU copies
};

struct Flow {
  // So many for each of those who share a copy: enough for all to end at about the same time.
  static constexpr std::uint64_t kChunksACopier = 4;
  // Enough to keep a GPU's stream busy, or the workers, and few enough that what comes after need not wait long.
  static constexpr std::uint64_t kCopyChunksMax = 8;
  static constexpr std::uint64_t kUnawaitedChunksMax = 3;  // of kUnawaitedChunkBytes

  Transfer transfer;
  Path path{};
  Ends ends;
  const std::byte* from = nullptr;  // of the whole tensor; null on the block tier
  std::byte* to = nullptr;
  std::uint64_t chunk_bytes = 0;
  std::uint64_t chunks = 0;
  std::uint64_t begun = 0;
  std::uint64_t in_flight = 0;
  bool one_by_one = false;  // source and target overlap: each chunk waits for the one before it
  bool backwards = false;   // from the last chunk to the first
  Result<void> result;      // of the first chunk that failed
  bool gpu_failed = false;  // what failed it was a GPU

  // Of a transfer with these ends, along this path, of this urgency.
  static std::uint64_t chunk_bytes_of(std::uint64_t bytes, Path path, const Ends& ends, Class urgency);

  // The CPU copies its chunks, or zeroes them, and nothing else happens to them.
  bool by_cpu() const {
    return (path == Path::kCopy || path == Path::kZero) && ends.from_gpu == nullptr && ends.to_gpu == nullptr;
  }
  // Nothing of it is left to begin: all is under way, or it has failed.
  bool is_begun() const { return begun == chunks || !result; }
  bool can_begin() const { return !is_begun() && in_flight < in_flight_max(); }
  std::uint64_t in_flight_max() const;

  // Starts it afresh: everything above from these.
  void prepare(const Transfer& new_transfer, Path new_path, const Ends& new_ends, const std::byte* new_from,
               std::byte* new_to);
  // The next chunk's work; counts it as begun. `zeros`: a chunk of zeros, what zero-filling the block tier writes.
  ChunkWork begin_chunk(const std::byte* zeros);
};

}  // namespace terrace::mover
