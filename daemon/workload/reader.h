// SPDX-License-Identifier: Apache-2.0
// Reading a workload from JSON Lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "terrace/error.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::workload {

// Far above what anything real has, and low enough that sums of all bytes and of all times never overflow.
inline constexpr std::uint64_t kWorkloadBytesMax = std::uint64_t{1} << 53;     // of all tensors together
inline constexpr Duration kWorkloadComputeMax = std::chrono::hours(24 * 365);  // of all runs together

// Reads `text`; `source` is its name in messages. The error is an InvalidArgument "SOURCE:LINE: what is wrong and what
// would be right", of the first line that is refused: one that is no record or has an unknown field, a field of another
// type or out of range, an id that was not declared before it, a tensor that is read or freed when it has no content
// (in the first pass or when the file is repeated from its first run), a run after which no step ends. With a `node`,
// also a run whose set does not fit its place there even alone.
Result<Workload> read(std::string_view text, std::string_view source, const Node* node = nullptr);

// read() of the file at `path`. NotFound, PermissionDenied or InvalidArgument if it cannot be read.
Result<Workload> load(const std::string& path, const Node* node = nullptr);

}  // namespace terrace::workload
