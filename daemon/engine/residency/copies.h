// SPDX-License-Identifier: Apache-2.0
// Copies and their extents: where they lie, how they come and go.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/catalog/memory.h"
#include "engine/residency/block_space.h"
#include "engine/residency/holdings.h"
#include "engine/residency/ledger.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/values/counts.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Copies {
 public:
  Copies(CatalogMemory& catalog, Turn& turn, Counts& counts, Ledger& ledger, BlockSpace& block, Tiers& tiers,
         Records& records)
      : catalog_(catalog),
        turn_(turn),
        counts_(counts),
        ledger_(ledger),
        block_(block),
        tiers_(tiers),
        records_(records) {}

  void add_copy(Holdings& session, Slot slot, TierId tier, std::uint64_t offset);
  // The copy has the content.
  void make_valid(Holdings& session, Slot slot, Level level);
  // Whether the home could be written the last time: nothing is written there early until it can.
  static void mark_home(Tensor& tensor, bool good) { tensor.home_bad = !good; }
  void drop_copy(Holdings& session, Slot slot, Level level);
  void free_extent(Holdings& session, TierId tier, tier::Extent extent);
  void free_home(Tensor& tensor);
  void retire_home(Tensor& tensor);
  // Its home is out of use, and another one in its place. False, and nothing done: there is no room for another.
  bool set_home_aside(Tensor& tensor);
  void lose_copy(Tensor& tensor, Level level);
  void lose_if_gone(Holdings& session, Slot slot);
  void count_eviction(Tensor& tensor, Level level, EvictionReason reason);
  void drop_content(Holdings& session, Slot slot);
  // A seam of these pages, which are taken from the space, for this admission.
  void begin_seam(Holdings& session, TierId tier, std::vector<tier::Extent> pages, std::uint64_t made_for);
  void unstitch(Holdings& session, TierId tier, std::uint64_t offset);
  void forget_records(Holdings& session, const Seam& seam);
  void unstitch_idle(Holdings& session, TierId tier);
  Result<void> restore_seams(const CatalogMemory& catalog, Holdings& session);
  static bool restore_in_seam(Place& place, tier::Extent extent);

 private:
  CatalogMemory& catalog_;
  Turn& turn_;
  Counts& counts_;
  Ledger& ledger_;
  BlockSpace& block_;
  Tiers& tiers_;
  Records& records_;
};

}  // namespace terrace::engine
