// SPDX-License-Identifier: Apache-2.0
// Whether an admission finds what it asks for.
#pragma once

#include <string>
#include <vector>

#include "engine/admission/session.h"
#include "engine/links/links.h"
#include "engine/residency/holders.h"
#include "engine/residency/lookup.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/residency/wakes.h"
#include "engine/residency/words.h"

namespace terrace::engine {

class Checks {
 public:
  Checks(Links& links, Tiers& tiers, Wakes& wakes, Records& records, Lookup& lookup, Words& words, Holders& holders)
      : links_(links),
        tiers_(tiers),
        wakes_(wakes),
        records_(records),
        lookup_(lookup),
        words_(words),
        holders_(holders) {}

  bool is_there(const Session& session, const Admission& admission, const Tensor& tensor, shm::Mode mode) const;
  bool reads_of_another(const Admission& admission, const Tensor& tensor, shm::Mode mode) const;
  static bool pinned_by_another(const Session& session, const Admission& admission, const Tensor& tensor);
  static bool waits_behind(const Admission& admission, const Tensor& tensor);
  bool all_there(const Session& session, const Admission& admission, const std::vector<Slot>& slots) const;
  static bool reads_content(const Admission& admission, shm::Mode mode);
  Result<void> check_content(const Session& session, const Admission& admission, Slot slot, shm::Mode mode) const;
  Error out_of_use(const Session& session, const Admission& admission) const;
  bool needs_block(const Admission& admission, const Tensor& tensor, shm::Mode mode) const;
  Result<void> check_writable(const Session& session, const Admission& admission, Slot slot) const;
  Result<void> find_set(Session& session, Admission& admission);
  Result<void> await_others(Session& session, Admission& admission, Slot slot);

  std::vector<Slot> spare_slots;  // memory for those of the next one

 private:
  std::string how_lost(const Tensor& tensor) const;

  Links& links_;
  Tiers& tiers_;
  Wakes& wakes_;
  Records& records_;
  Lookup& lookup_;
  Words& words_;
  Holders& holders_;
};

}  // namespace terrace::engine
