// SPDX-License-Identifier: Apache-2.0
// A session that waits until its guarantees are backed.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "engine/values/request.h"

namespace terrace::engine {

// A session that is to open once its floors are backed.
struct PendingOpen {
  RequestId request{};
  OpenSession open;
  std::vector<std::uint64_t> floors;  // bytes, by tier
};

}  // namespace terrace::engine
