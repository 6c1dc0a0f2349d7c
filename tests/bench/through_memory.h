// SPDX-License-Identifier: Apache-2.0
// A job of fio's once more, by an io_uring of our own and through more memory. fio has as many buffers as its depth and
// goes round them, so that caches may hold all of them; here as many requests are under way, and caches hold none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <utility>

#include "base/fd.h"
#include "bench/fio.h"
#include "bench/memcpy_reference.h"

namespace terrace::bench {

class ThroughMemory {
 public:
  // `file`: as fio laid it out. Through as much memory as the job moves, but 512 MiB at most. Errors: the system's.
  static Result<ThroughMemory> make(const std::filesystem::path& file, const FioJob& job);

  std::uint64_t memory_bytes() const { return memory_.bytes().size(); }
  // Moves the job's bytes once, O_DIRECT, all that the job's threads have under way by one; GiB a second. Meanwhile as
  // much of the memory is registered as may be locked.
  Result<double> run();

 private:
  class Loop;

  ThroughMemory(const FioJob& job, ReferenceMemory memory) : job_(job), memory_(std::move(memory)) {}
  FioJob job_;
  std::uint64_t part_bytes_ = 0;  // of the file
  ReferenceMemory memory_;
  Fd file_;
};

}  // namespace terrace::bench
