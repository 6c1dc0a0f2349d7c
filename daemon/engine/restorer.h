// SPDX-License-Identifier: Apache-2.0
// An engine goes on where one that died had come to.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "engine/admission/session.h"
#include "engine/admission/sessions.h"
#include "engine/budget/budget.h"
#include "engine/catalog/memory.h"
#include "engine/engine.h"
#include "engine/links/links.h"
#include "engine/opening.h"
#include "engine/residency/block_space.h"
#include "engine/residency/copies.h"
#include "engine/residency/ledger.h"
#include "engine/residency/lives.h"
#include "engine/residency/records.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/words.h"
#include "engine/tensors.h"
#include "engine/values/counts.h"
#include "engine/values/options.h"
#include "engine/values/turn.h"

namespace terrace::engine {

// What nobody was told of: tensors whose content was given up for a lease, and tensors that were created.
struct Unanswered {
  std::vector<Slot> torn;
  std::vector<Slot> created;
};

class Restorer {
 public:
  Restorer(const Options& options, CatalogMemory& catalog, Turn& turn, Counts& counts, Links& links, Ledger& ledger,
           BlockSpace& block, Registry& registry, Tiers& tiers, Records& records, Copies& copies, Words& words,
           Transfers& transfers, Lives& lives, Budget& budget, Sessions& sessions, Tensors& tensors, Opening& opening)
      : options_(options),
        catalog_(catalog),
        turn_(turn),
        counts_(counts),
        links_(links),
        ledger_(ledger),
        block_(block),
        registry_(registry),
        tiers_(tiers),
        records_(records),
        copies_(copies),
        words_(words),
        transfers_(transfers),
        lives_(lives),
        budget_(budget),
        sessions_(sessions),
        tensors_(tensors),
        opening_(opening) {}

  // FailedPrecondition: the tiers are others, or the catalog is damaged; then nothing was changed in it.
  Result<void> restore_from(std::span<const Survivor> survivors, std::span<const LostSegment> lost);

 private:
  Result<void> check_restored() const;
  void mark_gone(const LostSegment& lost);
  bool is_in_use(std::size_t record) const;
  Result<void> restore_members(const CatalogMemory& catalog, std::span<const Survivor> survivors);
  Result<void> restore_session(const CatalogMemory& catalog, Session& session);
  Result<void> restore_tensor(Session& session, Slot slot, const TensorRecord& record);
  Result<void> restore_home(Tensor& tensor, const TensorRecord& record);
  bool may_still_land(const Tensor& tensor, const TensorState& was) const;
  std::map<SessionId, Unanswered> undo_unanswered(std::span<const Survivor> survivors);
  void settle(Session& session, const Unanswered& unanswered);

  const Options& options_;
  CatalogMemory& catalog_;
  Turn& turn_;
  Counts& counts_;
  Links& links_;
  Ledger& ledger_;
  BlockSpace& block_;
  Registry& registry_;
  Tiers& tiers_;
  Records& records_;
  Copies& copies_;
  Words& words_;
  Transfers& transfers_;
  Lives& lives_;
  Budget& budget_;
  Sessions& sessions_;
  Tensors& tensors_;
  Opening& opening_;
};

}  // namespace terrace::engine
