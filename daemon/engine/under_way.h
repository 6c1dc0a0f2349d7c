// SPDX-License-Identifier: Apache-2.0
// What the engine has under way: transfers, requests that wait for their replies, and sessions that wait to open.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/tensor.h"
#include "engine/values/request.h"
#include "engine/values/status.h"
#include "mover/transfer.h"

namespace terrace::engine {

// A transfer that was begun.
struct Flight {
  SessionId session{};
  Slot slot{};
  Activity activity{};
  Level from = Level::kNone;
  Level to = Level::kNone;
  EvictionReason reason{};
  std::uint64_t step_bytes = 0;  // kSliding
  mover::Link link{};
  std::uint64_t bytes = 0;
  Time begun{};
};

// A request without its reply.
struct Waiting {
  SessionId session{};  // 0: an OpenSession
  Time deadline = kNever;
  bool close = false;
};

// A session that is to open once its floors are backed.
struct PendingOpen {
  RequestId request{};
  OpenSession open;
  std::vector<std::uint64_t> floors;  // bytes, by tier
};

// Of a transfer that somebody waits for.
struct Urgency {
  mover::Class urgency = mover::Class::kDemand;
  Time deadline = kNever;
};

}  // namespace terrace::engine
