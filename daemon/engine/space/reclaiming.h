// SPDX-License-Identifier: Apache-2.0
// What lies behind a fence leaves.
#pragma once

#include "engine/budget/budget.h"
#include "engine/links/links.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/wakes.h"
#include "engine/residency/words.h"
#include "engine/space/evictions.h"
#include "engine/space/windows.h"
#include "engine/steps/course.h"

namespace terrace::engine {

class Reclaiming {
 public:
  Reclaiming(Links& links, Tiers& tiers, Wakes& wakes, Words& words, Transfers& transfers, Budget& budget,
             Windows& windows, Evictions& evictions)
      : links_(links),
        tiers_(tiers),
        wakes_(wakes),
        words_(words),
        transfers_(transfers),
        budget_(budget),
        windows_(windows),
        evictions_(evictions) {}

  void reclaim(Course& session);

 private:
  void reclaim_copy(Course& session, TierId tier, Slot slot);
  void move_below_fence(Course& session, TierId tier, Slot slot);

  Links& links_;
  Tiers& tiers_;
  Wakes& wakes_;
  Words& words_;
  Transfers& transfers_;
  Budget& budget_;
  Windows& windows_;
  Evictions& evictions_;
};

}  // namespace terrace::engine
