// SPDX-License-Identifier: Apache-2.0
// Tensors that go, and what can be read of those that are there.
#pragma once

#include "engine/admission/checks.h"
#include "engine/admission/grants.h"
#include "engine/admission/queues.h"
#include "engine/admission/session.h"
#include "engine/residency/lives.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/steps/steps.h"

namespace terrace::engine {

class Tensors {
 public:
  Tensors(Tiers& tiers, Records& records, Lives& lives, Steps& steps, Queues& queues, Checks& checks, Grants& grants)
      : tiers_(tiers),
        records_(records),
        lives_(lives),
        steps_(steps),
        queues_(queues),
        checks_(checks),
        grants_(grants) {}

  void delete_tensor(Session& session, Slot slot);
  void tear(Session& session, Slot slot);
  TensorInfo describe(const Session& session, Slot slot) const;

 private:
  Tiers& tiers_;
  Records& records_;
  Lives& lives_;
  Steps& steps_;
  Queues& queues_;
  Checks& checks_;
  Grants& grants_;
};

}  // namespace terrace::engine
