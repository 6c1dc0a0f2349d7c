// SPDX-License-Identifier: Apache-2.0
// What the disk gives to plain threads: the link that a training's tensors go over.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/fd.h"
#include "bench/leftovers.h"
#include "bench/memcpy_reference.h"
#include "terrace/error.h"

namespace terrace::bench {

// Bytes a second.
struct DiskSpeed {
  double read = 0;
  double write = 0;
};

// A file that is written and read by eight threads in pieces of 1 MiB with O_DIRECT, from memory and to memory that
// was touched before. It goes with the object.
class DiskReference {
 public:
  // A file of `bytes` in `folder`, written once.
  static Result<DiskReference> make(const std::filesystem::path& folder, std::uint64_t bytes);
  // Writes all of it, reads it back, and waits until the disk has it for good. Content is made and checked, and
  // waited, while no clock runs: kDataLoss where other bytes come back.
  Result<DiskSpeed> measure();

 private:
  DiskReference(Folder folder, Fd file, ReferenceMemory memory)
      : folder_(std::move(folder)), file_(std::move(file)), memory_(std::move(memory)) {}

  Folder folder_;
  Fd file_;
  ReferenceMemory memory_;  // as much as the file has
  std::uint64_t version_ = 0;
};

}  // namespace terrace::bench
