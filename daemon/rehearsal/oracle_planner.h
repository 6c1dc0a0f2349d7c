// SPDX-License-Identifier: Apache-2.0
// The daemon's planner, told the very steps that will run instead of what was learned of former ones: what a plan is
// worth whose foresight is perfect. For comparison alone.
#pragma once

#include <cstdint>
#include <vector>

#include "foresight/planner.h"
#include "foresight/template.h"
#include "workload/workload.h"

namespace terrace::rehearsal {

class OraclePlanner {
 public:
  OraclePlanner(const workload::Workload& workload, foresight::Machine machine);

  // Of the step of that number, from 0; steps are repeated as the workload is.
  foresight::Plan plan(std::uint64_t step) const;

 private:
  foresight::Machine machine_;
  std::vector<foresight::Template> steps_;
};

}  // namespace terrace::rehearsal
