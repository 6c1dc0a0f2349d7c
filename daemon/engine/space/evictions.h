// SPDX-License-Identifier: Apache-2.0
// Copies go down a tier, where room for them is made first.
#pragma once

#include <cstdint>

#include "engine/budget/budget.h"
#include "engine/residency/copies.h"
#include "engine/residency/marks.h"
#include "engine/residency/tiers.h"
#include "engine/residency/words.h"
#include "engine/space/answers.h"
#include "engine/space/departures.h"
#include "engine/space/windows.h"
#include "engine/steps/course.h"

namespace terrace::engine {

class Evictions {
 public:
  Evictions(Marks& marks, Tiers& tiers, Copies& copies, Words& words, Budget& budget, Departures& departures,
            Windows& windows)
      : marks_(marks),
        tiers_(tiers),
        copies_(copies),
        words_(words),
        budget_(budget),
        departures_(departures),
        windows_(windows) {}

  // Gives up the copy at `level`, of a tensor that may be moved: from a device into memory if there is room or can be
  // made without waiting for leases, else straight home.
  Eviction evict(Course& session, Slot slot, Level level, EvictionReason reason, Urgency urgency);
  bool allocate_by_dropping(Course& session, TierId tier, std::uint64_t bytes, std::uint64_t& offset);

 private:
  Eviction lower_extent(Course& session, Slot slot, Urgency urgency, Level& target);
  Eviction make_room_below(Course& session, Slot slot, std::uint64_t coming, Urgency urgency);

  Marks& marks_;
  Tiers& tiers_;
  Copies& copies_;
  Words& words_;
  Budget& budget_;
  Departures& departures_;
  Windows& windows_;
};

}  // namespace terrace::engine
