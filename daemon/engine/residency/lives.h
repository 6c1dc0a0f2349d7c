// SPDX-License-Identifier: Apache-2.0
// Tensors begin, get content, are pinned, lose their content and go.
#pragma once

#include <cstdint>

#include "engine/catalog/memory.h"
#include "engine/residency/copies.h"
#include "engine/residency/holdings.h"
#include "engine/residency/ledger.h"
#include "engine/residency/records.h"
#include "engine/residency/transfers.h"
#include "engine/residency/words.h"
#include "engine/values/counts.h"
#include "engine/values/request.h"
#include "tier/extent.h"

namespace terrace::engine {

class Lives {
 public:
  Lives(CatalogMemory& catalog, Counts& counts, Ledger& ledger, Records& records, Copies& copies, Words& words,
        Transfers& transfers)
      : catalog_(catalog),
        counts_(counts),
        ledger_(ledger),
        records_(records),
        copies_(copies),
        words_(words),
        transfers_(transfers) {}

  // A tensor of these facts, whose text lies there in the catalog. It has no content, and no copy yet.
  Slot add(Holdings& session, const TensorSpec& spec, std::uint64_t text);
  // Its home on the block tier, which was taken for it.
  void give_home(Holdings& session, Slot slot, const tier::Pieces& pieces, std::uint64_t first_checksum);
  // Somebody got a lease to write it.
  void written(Holdings& session, Slot slot);
  // The same, of an overwrite of a tensor that nobody leases: other copies do not count.
  void overwritten_at(Holdings& session, Slot slot, Level level);
  void pin(Holdings& session, Slot slot, Level level, SessionId member);
  static bool pinned_by(const Holdings& session, Slot slot, SessionId member);
  void unpin(Holdings& session, Slot slot);
  void forget(Holdings& session, Slot slot);
  // False: it is as it was, since it is deleted, or nobody may overwrite it.
  bool tear(Holdings& session, Slot slot);
  // Of a tensor without content: that an overwrite was given up does not count any more.
  void mend(Holdings& session, Slot slot);
  void remove(Holdings& session, Slot slot);
  void finish_leaving(Holdings& session);
  bool try_finish_delete(Holdings& session, Slot slot);

 private:
  CatalogMemory& catalog_;
  Counts& counts_;
  Ledger& ledger_;
  Records& records_;
  Copies& copies_;
  Words& words_;
  Transfers& transfers_;
};

}  // namespace terrace::engine
