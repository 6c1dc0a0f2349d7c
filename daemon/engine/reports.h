// SPDX-License-Identifier: Apache-2.0
// What the engine says of itself.
#pragma once

#include "engine/admission/session.h"
#include "engine/budget/budget.h"
#include "engine/links/links.h"
#include "engine/requests/requests.h"
#include "engine/residency/block_space.h"
#include "engine/residency/holders.h"
#include "engine/residency/ledger.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/values/counts.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Reports {
 public:
  Reports(Turn& turn, Counts& counts, Links& links, Ledger& ledger, BlockSpace& block, Registry& registry,
          Requests& requests, Tiers& tiers, Holders& holders, Budget& budget)
      : turn_(turn),
        counts_(counts),
        links_(links),
        ledger_(ledger),
        block_(block),
        registry_(registry),
        requests_(requests),
        tiers_(tiers),
        holders_(holders),
        budget_(budget) {}

  Status status() const;

 private:
  TierStatus tier_status(TierId at) const;
  SessionStatus session_status(const Session& session) const;

  Turn& turn_;
  Counts& counts_;
  Links& links_;
  Ledger& ledger_;
  BlockSpace& block_;
  Registry& registry_;
  Requests& requests_;
  Tiers& tiers_;
  Holders& holders_;
  Budget& budget_;
};

}  // namespace terrace::engine
