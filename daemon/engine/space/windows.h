// SPDX-License-Identifier: Apache-2.0
// What lies in a tier, and which run of it is missed least.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/budget/budget.h"
#include "engine/links/links.h"
#include "engine/residency/marks.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/words.h"
#include "engine/space/answers.h"
#include "engine/space/departures.h"
#include "engine/space/survey.h"
#include "engine/steps/course.h"

namespace terrace::engine {

// Who lies where in a tier.
struct Occupant {
  tier::Extent extent;
  std::optional<Slot> copy;  // none: pages of a seam, which stay
};

class Windows {
 public:
  Windows(Links& links, Marks& marks, Tiers& tiers, Words& words, Transfers& transfers, Budget& budget,
          Departures& departures)
      : links_(links),
        marks_(marks),
        tiers_(tiers),
        words_(words),
        transfers_(transfers),
        budget_(budget),
        departures_(departures) {}

  Survey survey(Course& session, TierId tier, const Choice& choice);
  void raise_leaving(Course& session, TierId tier, std::uint64_t enough_bytes, Urgency urgency);
  bool join_free(Course& session, TierId tier, std::uint64_t bytes, bool far = false);
  bool takes_drives(const Course& session, TierId tier, Slot slot) const;
  bool join_parts(Course& session, TierId tier, std::vector<std::uint64_t> sizes);
  bool clear_window(Course& session, TierId tier, std::uint64_t bytes, const Choice& choice);
  bool slide_one(Course& session, TierId tier);
  std::vector<std::uint64_t> runs_at_best(const Course& session, TierId tier) const;

 private:
  std::optional<double> missed(Course& session, TierId tier, Slot slot, const Choice& choice) const;
  std::vector<Occupant> occupants_for(const Course& session, TierId tier, std::uint64_t bytes) const;

  Links& links_;
  Marks& marks_;
  Tiers& tiers_;
  Words& words_;
  Transfers& transfers_;
  Budget& budget_;
  Departures& departures_;
};

}  // namespace terrace::engine
