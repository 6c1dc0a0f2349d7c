// SPDX-License-Identifier: Apache-2.0
// What this machine's memory gives without us: copies and first touches by plain threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/mapping.h"
#include "terrace/error.h"

namespace terrace::bench {

// Memory of a reference: in huge pages for as long as there are any, and in ordinary ones from there on, as the
// daemon's segments are. Children do not inherit it, since a fork would have its owner fault in every page anew.
class ReferenceMemory {
 public:
  // Mapped, and not touched. kResourceExhausted where there is none.
  static Result<ReferenceMemory> map(std::uint64_t bytes);

  std::span<std::byte> bytes() const { return {range_.data(), bytes_}; }
  // "in huge pages", "in ordinary pages" or "in huge pages in part".
  std::string pages() const;

 private:
  AddressRange range_;
  std::uint64_t bytes_ = 0;
  std::uint64_t huge_bytes_ = 0;
};

// Copies between two buffers that were touched before, by as many threads as a daemon copies with, on the NUMA nodes
// where a daemon has them. Each thread's part of both buffers is on its own node: memcpy at its best.
class MemcpyReference {
 public:
  static Result<MemcpyReference> make(std::uint64_t bytes);

  struct Copied {
    double bytes_per_second = 0;
    double cpu_seconds = 0;  // of all threads
  };
  // Copies one buffer into the other once, each thread its own part, in pieces of 1 MiB. kDataLoss if the copy differs.
  Result<Copied> copy();
  // What a row says of it.
  std::string described() const;

 private:
  ReferenceMemory from_;
  ReferenceMemory to_;
  std::uint64_t version_ = 0;
};

// Fresh memory, mapped and backed in full by a thread a processor.
struct Touched {
  double seconds = 0;
  double cpu_seconds = 0;  // of all threads
  std::string described{};
};
Result<Touched> map_and_touch(std::uint64_t bytes);

}  // namespace terrace::bench
