// SPDX-License-Identifier: Apache-2.0
// Tensors that go, and what can be read of those that are there.
#pragma once

#include "engine/admission/checks.h"
#include "engine/admission/grants.h"
#include "engine/admission/queues.h"
#include "engine/admission/session.h"
#include "engine/residency/copies.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/words.h"
#include "engine/steps/steps.h"
#include "engine/values/counts.h"

namespace terrace::engine {

class Tensors {
 public:
  Tensors(Counts& counts, Tiers& tiers, Records& records, Copies& copies, Words& words, Transfers& transfers,
          Steps& steps, Queues& queues, Checks& checks, Grants& grants)
      : counts_(counts),
        tiers_(tiers),
        records_(records),
        copies_(copies),
        words_(words),
        transfers_(transfers),
        steps_(steps),
        queues_(queues),
        checks_(checks),
        grants_(grants) {}

  void delete_tensor(Session& session, Slot slot);
  void finish_leaving(Session& session);
  bool try_finish_delete(Session& session, Slot slot);
  void tear(Session& session, Slot slot);
  TensorInfo describe(const Session& session, Slot slot) const;

 private:
  Counts& counts_;
  Tiers& tiers_;
  Records& records_;
  Copies& copies_;
  Words& words_;
  Transfers& transfers_;
  Steps& steps_;
  Queues& queues_;
  Checks& checks_;
  Grants& grants_;
};

}  // namespace terrace::engine
