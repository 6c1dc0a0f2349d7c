// SPDX-License-Identifier: Apache-2.0
// Regions of the block tier that are out of use are written and read back, with a pattern, when they are nobody's: so a
// region that works again is given back, and so an outage ends. One at a time, a part of a region at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/links/links.h"
#include "engine/residency/block_space.h"
#include "engine/residency/copies.h"
#include "engine/residency/ledger.h"
#include "engine/residency/tiers.h"
#include "engine/values/options.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Trials {
 public:
  Trials(const Options& options, Turn& turn, Links& links, Ledger& ledger, BlockSpace& block, Tiers& tiers,
         Copies& copies)
      : turn_(turn),
        links_(links),
        ledger_(ledger),
        block_(block),
        tiers_(tiers),
        copies_(copies),
        pauses_(options.retired_pauses),
        pause_(options.retired_pauses.first) {}

  // An outage began as the home of `tensor` was written; null: it is leaving. Chooses where its tries will be.
  void prepare(Tensor* tensor);
  // Begins the one that is due, where nothing else is at the tier: before the turn's records and transfers.
  void look();
  // When the next one is due: kNever while one is under way, and while something else is at the tier.
  Time next() const;
  // A trial's transfer is complete. True: an outage ended by it.
  bool done(const Result<void>& result);
  // The outage is over: what is out of use most likely works again.
  void hurry() { next_ = turn_.now; }

  // Whether a transfer is a trial, and no session's.
  static bool is_one(const Flight& flight) { return flight.session == SessionId{}; }

 private:
  struct Trial {
    tier::Extent part;
    bool decides = false;  // whether the outage ends
  };

  bool has_link_to_itself() const;
  bool set_free_aside();
  void start();
  void give_back(tier::Extent part);
  void pass_over(tier::Extent part);

  Turn& turn_;
  Links& links_;
  Ledger& ledger_;
  BlockSpace& block_;
  Tiers& tiers_;
  Copies& copies_;
  Pauses pauses_;
  Duration pause_;
  Time next_ = kNever;           // for a region that is out of use
  std::size_t seen_ = 0;         // of those, at the last look
  std::uint32_t set_aside_ = 0;  // free regions, for the tries of this outage
  std::optional<Trial> under_way_;
};

}  // namespace terrace::engine
