// SPDX-License-Identifier: Apache-2.0
// Copies are written back before anybody needs their room.
#pragma once

#include <vector>

#include "engine/budget/budget.h"
#include "engine/links/links.h"
#include "engine/residency/copies.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/steps/course.h"
#include "engine/values/options.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Cleaning {
 public:
  Cleaning(const Options& options, Turn& turn, Links& links, Registry& registry, Tiers& tiers, Copies& copies,
           Transfers& transfers, Budget& budget);

  void clean(Course& session);
  bool awaits_write_backs() const;
  void look_for_write_backs();
  void written_back(Holdings& session, bool good);

  Time next_look() const { return next_look_; }

 private:
  void clean_place(Course& session, TierId tier);
  void go_round(Holdings& session);
  bool write_back(Holdings& session, Slot slot);
  bool reserve_below(Holdings& session, Slot slot, Level& target);

  const Options& options_;
  Turn& turn_;
  Links& links_;
  Registry& registry_;
  Tiers& tiers_;
  Copies& copies_;
  Transfers& transfers_;
  Budget& budget_;
  bool writes_back_early_ = false;  // from some tier
  std::vector<TierId> kept_clean_;  // tiers right above the homes whose copies are, once the tier is nearly full
  Time next_look_{};                // for what to write back early
};

}  // namespace terrace::engine
