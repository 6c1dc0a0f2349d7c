// SPDX-License-Identifier: Apache-2.0
// The laws of the design, as far as the engine can see them.
#pragma once

#include <span>

#include "engine/admission/session.h"
#include "engine/budget/budget.h"
#include "engine/catalog/memory.h"
#include "engine/links/links.h"
#include "engine/requests/requests.h"
#include "engine/residency/block_space.h"
#include "engine/residency/ledger.h"
#include "engine/residency/records.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/residency/wakes.h"
#include "engine/residency/words.h"
#include "engine/space/rooms.h"
#include "engine/space/windows.h"

namespace terrace::engine {

class Laws {
 public:
  Laws(CatalogMemory& catalog, Links& links, Ledger& ledger, BlockSpace& block, Registry& registry, Requests& requests,
       Tiers& tiers, Wakes& wakes, Records& records, Words& words, Budget& budget, Windows& windows, Rooms& rooms)
      : catalog_(catalog),
        links_(links),
        ledger_(ledger),
        block_(block),
        registry_(registry),
        requests_(requests),
        tiers_(tiers),
        wakes_(wakes),
        records_(records),
        words_(words),
        budget_(budget),
        windows_(windows),
        rooms_(rooms) {}

  // Aborts where one is broken. `scribbled`: sessions whose words are not held against the engine.
  void check(std::span<const SessionId> scribbled) const;

 private:
  void check_catalog() const;
  void check_texts() const;
  void check_session(const Session& session, bool scribbled) const;
  void check_tensor(const Session& session, Slot slot) const;
  void check_word(const Session& session, Slot slot) const;
  void check_places(const Session& session) const;
  void check_guarantee(const Session& session, TierId tier) const;
  void check_block() const;

  CatalogMemory& catalog_;
  Links& links_;
  Ledger& ledger_;
  BlockSpace& block_;
  Registry& registry_;
  Requests& requests_;
  Tiers& tiers_;
  Wakes& wakes_;
  Records& records_;
  Words& words_;
  Budget& budget_;
  Windows& windows_;
  Rooms& rooms_;
};

}  // namespace terrace::engine
