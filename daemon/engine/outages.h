// SPDX-License-Identifier: Apache-2.0
// What is done as the block tier takes no writes any more, and as it takes them again. Meanwhile every copy stays where
// it is, dirty ones too: who waits for room that only a write-back would make waits to its own deadline.
#pragma once

#include "engine/links/links.h"
#include "engine/outcomes.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/residency/trials.h"
#include "engine/residency/wakes.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Outages {
 public:
  Outages(Turn& turn, Links& links, Registry& registry, Tiers& tiers, Wakes& wakes, Trials& trials, Outcomes& outcomes)
      : turn_(turn),
        links_(links),
        registry_(registry),
        tiers_(tiers),
        wakes_(wakes),
        trials_(trials),
        outcomes_(outcomes) {}

  // A session's transfer is complete: what comes of it for the tier, and then for the tensor.
  void completed(Session& session, const Flight& flight, const mover::TransferDone& done);
  // A trial is (Trials::is_one()).
  void tried(const Result<void>& result);

 private:
  void begin(Session& session, const Flight& flight);
  void end();
  void withhold();

  Turn& turn_;
  Links& links_;
  Registry& registry_;
  Tiers& tiers_;
  Wakes& wakes_;
  Trials& trials_;
  Outcomes& outcomes_;
};

}  // namespace terrace::engine
