// SPDX-License-Identifier: Apache-2.0
// What this machine's memory gives without us: copies and first touches by plain threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "terrace/error.h"

namespace terrace::bench {

// Takes a mapping away.
struct Unmap {
  std::uint64_t bytes = 0;
  void operator()(std::byte* memory) const;
};

// Two buffers in ordinary memory, touched before anything is measured.
class MemcpyReference {
 public:
  static Result<MemcpyReference> make(std::uint64_t bytes);

  struct Copied {
    double seconds = 0;
    double cpu_seconds = 0;  // of all threads
  };
  // Copies one buffer into the other once, each thread its own part, in pieces of 1 MiB. kDataLoss if the copy differs.
  Result<Copied> copy(unsigned threads);

 private:
  using Memory = std::unique_ptr<std::byte, Unmap>;

  Memory from_;
  Memory to_;
  std::uint64_t bytes_ = 0;
  std::uint64_t version_ = 0;
};

// Seconds to map fresh memory and touch every page of it by so many threads.
Result<double> seconds_to_touch(std::uint64_t bytes, unsigned threads);

// Threads that a daemon copies with, where its configuration says nothing of it: half the processors, at least one.
unsigned daemon_copiers();

}  // namespace terrace::bench
