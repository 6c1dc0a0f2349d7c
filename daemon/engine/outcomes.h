// SPDX-License-Identifier: Apache-2.0
// What came of transfers.
#pragma once

#include "engine/admission/grants.h"
#include "engine/admission/queues.h"
#include "engine/admission/session.h"
#include "engine/residency/copies.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/words.h"
#include "engine/space/cleaning.h"
#include "engine/steps/steps.h"
#include "engine/values/counts.h"

namespace terrace::engine {

class Outcomes {
 public:
  Outcomes(Counts& counts, Links& links, Tiers& tiers, Records& records, Copies& copies, Words& words,
           Transfers& transfers, Steps& steps, Cleaning& cleaning, Queues& queues, Grants& grants)
      : counts_(counts),
        links_(links),
        tiers_(tiers),
        records_(records),
        copies_(copies),
        words_(words),
        transfers_(transfers),
        steps_(steps),
        cleaning_(cleaning),
        queues_(queues),
        grants_(grants) {}

  void completed(Session& session, const Flight& flight, const Result<void>& result, TierId failed);

 private:
  void fetched(Session& session, const Flight& flight, const Result<void>& result);
  void evicted(Session& session, const Flight& flight, const Result<void>& result, bool withheld);
  bool is_withheld(const Flight& flight, const Result<void>& result, TierId failed) const;

  Counts& counts_;
  Links& links_;
  Tiers& tiers_;
  Records& records_;
  Copies& copies_;
  Words& words_;
  Transfers& transfers_;
  Steps& steps_;
  Cleaning& cleaning_;
  Queues& queues_;
  Grants& grants_;
};

}  // namespace terrace::engine
