// SPDX-License-Identifier: Apache-2.0
// What trainers leased in shared memory without asking, on its way from their regions to the engine.
#pragma once

#include <vector>

#include "engine/engine.h"
#include "front/reactor/engine_loop.h"
#include "front/sessions/session.h"
#include "front/sessions/stamp_clock.h"

namespace terrace::front {

// The reactor thread's.
class AccessLogs {
 public:
  // `asks_when`: the engine wants to know when a lease was taken (engine::Options::observe). `loop` outlives it.
  AccessLogs(EngineLoop& loop, bool asks_when) : loop_(loop), asks_when_(asks_when) {}

  // Nothing happens unless the session is open.
  void drain(Session& session);

 private:
  EngineLoop& loop_;
  const bool asks_when_;
  StampClock stamps_;
  std::vector<engine::Access> accesses_;  // of the session before: its memory is used again
};

}  // namespace terrace::front
