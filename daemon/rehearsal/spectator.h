// SPDX-License-Identifier: Apache-2.0
// Whoever looks on at a rehearsal, for what its reports do not say.
#pragma once

#include "base/time.h"
#include "mover/transfer.h"
#include "rehearsal/links.h"
#include "rehearsal/trainer.h"
#include "workload/workload.h"

namespace terrace::rehearsal {

class Spectator {
 public:
  virtual ~Spectator() = default;
  // A transfer starts, and moves that much. Its tensor's number is the workload's id, counted from 1.
  virtual void moving(const mover::Transfer& transfer, const Traffic& traffic) = 0;
  // A run of a step has ended, and what it frees is dropped.
  virtual void ran(const workload::Run& run, Time now, const Trainer& trainer) = 0;
};

}  // namespace terrace::rehearsal
