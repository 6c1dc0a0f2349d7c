// SPDX-License-Identifier: Apache-2.0
// A request that waits for its reply.
#pragma once

#include "base/ids.h"
#include "base/time.h"

namespace terrace::engine {

// A request without its reply.
struct Waiting {
  SessionId session{};  // 0: an OpenSession
  Time deadline = kNever;
  bool close = false;
};

}  // namespace terrace::engine
