// SPDX-License-Identifier: Apache-2.0
#include "mover/flow.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace::mover {

// A GPU takes the same paths as memory, and its chunks know that its end of them is copied by its own streams: between
// a GPU and the block tier through pinned memory of the daemon's. GPUDirect Storage (cuFile) would be one more path,
// chosen here.
Path route(const Transfer& transfer, TierId block) {
  if (transfer.prove) return Path::kProve;
  if (transfer.zero_fill) return transfer.to.tier == block ? Path::kToBlock : Path::kZero;
  TERRACE_CHECK(transfer.from.tier != block || transfer.to.tier != block);
  if (transfer.to.tier == block) return Path::kToBlock;
  return transfer.from.tier == block ? Path::kFromBlock : Path::kCopy;
}

// What is read or written goes in tier::kChunkBytes. What is only copied goes in larger pieces where there is enough of
// it: each costs the same to begin, a GPU's and a worker's.
std::uint64_t Flow::chunk_bytes_of(std::uint64_t bytes, Path path, const Ends& ends, Class urgency) {
  const bool within = ends.from_gpu != nullptr && ends.to_gpu != nullptr;
  if (ends.pinned) return urgency > Class::kAwaitedWriteBack && !within ? kUnawaitedChunkBytes : kCopyChunkBytes;
  if (path != Path::kCopy || ends.from_gpu != nullptr || ends.to_gpu != nullptr) return tier::kChunkBytes;
  return std::clamp(align_down(bytes / (kChunksACopier * ends.copiers), tier::kChunkBytes), tier::kChunkBytes,
                    kCopyChunkBytes);
}

void Flow::prepare(const Transfer& new_transfer, Path new_path, const Ends& new_ends, const std::byte* new_from,
                   std::byte* new_to) {
  transfer = new_transfer;
  path = new_path;
  ends = new_ends;
  from = new_from;
  to = new_to;
  chunk_bytes = chunk_bytes_of(transfer.bytes, path, ends, transfer.urgency);
  chunks = (transfer.bytes + chunk_bytes - 1) / chunk_bytes;
  begun = 0;
  in_flight = 0;
  result = {};
  gpu_failed = false;
  // Overlapping ranges are copied away from the end towards which they move, as memmove does.
  const auto source = reinterpret_cast<std::uintptr_t>(from);
  const auto target = reinterpret_cast<std::uintptr_t>(to);
  one_by_one = path == Path::kCopy && source < target + transfer.bytes && target < source + transfer.bytes;
  backwards = one_by_one && target > source;
}

std::uint64_t Flow::in_flight_max() const {
  if (one_by_one) return 1;
  if (ends.pinned) return chunk_bytes > kCopyChunkBytes ? kUnawaitedChunksMax : kCopyChunksMax;
  return path == Path::kCopy ? std::max<std::uint64_t>(kCopyChunksMax, kChunksACopier * ends.copiers) : UINT64_MAX;
}

ChunkWork Flow::begin_chunk(const std::byte* zeros) {
  const std::uint64_t index = backwards ? chunks - 1 - begun : begun;
  ++begun;
  ++in_flight;
  const std::uint64_t offset = index * chunk_bytes;
  const std::uint64_t bytes = std::min(chunk_bytes, transfer.bytes - offset);
  ChunkWork work{.path = path,
                 .bytes = bytes,
                 .padded_bytes = align_up(bytes, kPageBytes),
                 .name = {.tensor = transfer.tensor, .version = transfer.version, .chunk = index},
                 .from_gpu = ends.from_gpu,
                 .to_gpu = ends.to_gpu,
                 .pinned = ends.pinned,
                 .urgency = transfer.urgency};
  if (from != nullptr) work.from = from + offset;
  if (to != nullptr) work.to = to + offset;
  if (path == Path::kToBlock || path == Path::kProve) {
    if (from == nullptr) work.from = zeros;
    work.pieces = &transfer.to.pieces;
    work.entry = transfer.to.first_checksum + index;
  } else if (path == Path::kFromBlock) {
    work.pieces = &transfer.from.pieces;
    work.entry = transfer.from.first_checksum + index;
  }
  return work;
}

}  // namespace terrace::mover
