// SPDX-License-Identifier: Apache-2.0
#include "workload/content.h"

#include <fmt/format.h>

namespace terrace::workload {

Result<void> Content::follow(const Run& run) {
  for (const TensorId id : run.read) {
    if (has_[id]) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("reads tensor {}, which has no content here; write it first, or declare it with "
                            "\"home\":true",
                            id));
  }
  for (const TensorId id : run.write) has_[id] = true;
  for (const TensorId id : run.free) {
    if (!has_[id]) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("frees tensor {}, which has no content here; leave it out of \"free\"", id));
    }
    has_[id] = false;
  }
  return {};
}

}  // namespace terrace::workload
