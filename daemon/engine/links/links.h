// SPDX-License-Identifier: Apache-2.0
// The links: what waits for them, and what is under way on them.
#pragma once

#include <cstdint>
#include <map>

#include "base/id_map.h"
#include "base/ids.h"
#include "base/time.h"
#include "engine/links/outage.h"
#include "engine/links/scheduler.h"
#include "engine/links/write_budget.h"
#include "engine/values/activity.h"
#include "engine/values/level.h"
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

// Of a transfer that somebody waits for.
struct Urgency {
  mover::Class urgency = mover::Class::kDemand;
  Time deadline = kNever;
};

struct Links {
  Scheduler scheduler;
  WriteBudget write_budget;  // of the block tier
  Outage outage;             // likewise
  IdMap<TransferId, Flight> flights{};
  std::map<mover::Link, LinkStatus> status{};
  std::uint64_t next_transfer = 1;
  bool former_at_work = false;  // a former daemon may be at the block tier; only where there is one

  // Whether what is written down may go to the block tier now.
  bool may_write_home() const { return !former_at_work && !outage.withholds(); }
};

}  // namespace terrace::engine
