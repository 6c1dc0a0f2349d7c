// SPDX-License-Identifier: Apache-2.0
// What the disk gives to plain threads: the link that a training's tensors go over.
#pragma once

#include <cstdint>
#include <filesystem>

#include "terrace/error.h"

namespace terrace::bench {

// Bytes a second.
struct DiskSpeed {
  double read = 0;
  double write = 0;
};

// Writes a file of so many bytes in `folder` and reads it back, by eight threads in pieces of 1 MiB with O_DIRECT, and
// removes it. kDataLoss where other bytes come back.
Result<DiskSpeed> measure_disk(const std::filesystem::path& folder, std::uint64_t bytes);

}  // namespace terrace::bench
