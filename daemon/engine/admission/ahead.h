// SPDX-License-Identifier: Apache-2.0
// What is brought before anybody asks: hints, and what a plan has.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/admission/checks.h"
#include "engine/admission/grants.h"
#include "engine/admission/queues.h"
#include "engine/admission/session.h"
#include "engine/budget/budget.h"
#include "engine/links/links.h"
#include "engine/residency/copies.h"
#include "engine/residency/lookup.h"
#include "engine/residency/marks.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/words.h"
#include "engine/space/evictions.h"
#include "engine/steps/steps.h"
#include "engine/values/counts.h"
#include "engine/values/turn.h"

namespace terrace::engine {

// Begun, or nothing to do; not now; nor any other that needs room there.
enum class Planned : std::uint8_t { kDone, kLater, kNoRoom };

class Ahead {
 public:
  Ahead(Turn& turn, Counts& counts, Links& links, Marks& marks, Tiers& tiers, Lookup& lookup, Copies& copies,
        Words& words, Transfers& transfers, Budget& budget, Steps& steps, Evictions& evictions, Queues& queues,
        Checks& checks, Grants& grants)
      : turn_(turn),
        counts_(counts),
        links_(links),
        marks_(marks),
        tiers_(tiers),
        lookup_(lookup),
        copies_(copies),
        words_(words),
        transfers_(transfers),
        budget_(budget),
        steps_(steps),
        evictions_(evictions),
        queues_(queues),
        checks_(checks),
        grants_(grants) {}

  void start_prefetches(Session& session);
  void revoke_prefetches(Session& session, const std::vector<Slot>& slots);
  void foresee(Session& session);

 private:
  void keep_prefetch(Session& session, const Tensor& tensor, TierId tier);
  bool revoke(Session& session, Admission& prefetch);
  void start_planned_cleans(Session& session);
  Planned start_planned_clean(Session& session, const foresight::PlannedClean& clean);
  void revoke_late(Session& session);
  void start_planned_fetches(Session& session);
  bool start_planned_fetch(Session& session, const foresight::PlannedFetch& fetch);

  Turn& turn_;
  Counts& counts_;
  Links& links_;
  Marks& marks_;
  Tiers& tiers_;
  Lookup& lookup_;
  Copies& copies_;
  Words& words_;
  Transfers& transfers_;
  Budget& budget_;
  Steps& steps_;
  Evictions& evictions_;
  Queues& queues_;
  Checks& checks_;
  Grants& grants_;
};

}  // namespace terrace::engine
