// SPDX-License-Identifier: Apache-2.0
// The checksums of the block tier's chunks: 8 bytes each, by the entry that the engine gave the chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fd.h"
#include "base/mapping.h"
#include "terrace/error.h"

namespace terrace::tier {

// What a chunk's checksum is bound to besides its bytes, so that a chunk of another tensor, of an earlier content or of
// another place is refused, however intact it is.
struct ChunkName {
  std::uint64_t tensor = 0;   // never used twice
  std::uint64_t version = 0;  // of the content
  std::uint64_t chunk = 0;    // index within the tensor
};

// XXH3 (64 bits) of the tensor's own bytes in the chunk, under a seed made of the name:
// docs/reference/formats-block.md.
std::uint64_t checksum(const ChunkName& name, std::span<const std::byte> bytes);

// A fixed number of entries, zero at first; memory is taken as they are used. Not thread-safe: the reactor's.
class ChecksumTable {
 public:
  ChecksumTable() = default;
  static Result<ChecksumTable> create(std::uint64_t entries);
  // One that a former daemon left: descriptor() of it. kFailedPrecondition: it is of another size.
  static Result<ChecksumTable> adopt(Fd memory, std::uint64_t entries);

  // Both abort beyond size().
  std::uint64_t get(std::uint64_t entry) const;
  void set(std::uint64_t entry, std::uint64_t checksum);
  std::uint64_t size() const { return entries_; }
  // A memfd: whoever has it has the table. Borrowed.
  int descriptor() const { return memory_.get(); }

 private:
  Fd memory_;
  AddressRange range_;
  std::uint64_t entries_ = 0;
};

}  // namespace terrace::tier
