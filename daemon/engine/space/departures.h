// SPDX-License-Identifier: Apache-2.0
// A copy goes: a clean one for nothing, a dirty one after a write-back.
#pragma once

#include "engine/links/links.h"
#include "engine/residency/copies.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/words.h"
#include "engine/space/answers.h"
#include "engine/steps/course.h"
#include "engine/steps/steps.h"

namespace terrace::engine {

class Departures {
 public:
  Departures(Links& links, Tiers& tiers, Copies& copies, Words& words, Transfers& transfers, Steps& steps)
      : links_(links), tiers_(tiers), copies_(copies), words_(words), transfers_(transfers), steps_(steps) {}

  // Of a copy above the homes, of a tensor that may be moved: neither leased nor pinned.
  bool may_go(const Course& session, Slot slot, Level level) const;
  // Gives up such a copy, whose bytes `target` has room for.
  Eviction go(Course& session, Slot slot, Level level, Level target, EvictionReason reason, Urgency urgency);
  // Gives up a copy whose bytes go straight home, where room for them is kept.
  Eviction evict_home(Course& session, Slot slot, Level level, EvictionReason reason, Urgency urgency);
  void evict_for_hint(Course& session, Slot slot);

 private:
  Links& links_;
  Tiers& tiers_;
  Copies& copies_;
  Words& words_;
  Transfers& transfers_;
  Steps& steps_;
};

}  // namespace terrace::engine
