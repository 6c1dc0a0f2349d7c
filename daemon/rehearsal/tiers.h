// SPDX-License-Identifier: Apache-2.0
// A node of a workload as the engine is configured for it, and as the learner plans for it.
#pragma once

#include "engine/engine.h"
#include "foresight/planner.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::rehearsal {

// Tiers that never fill hold all of the workload's tensors.
std::vector<engine::TierOptions> tiers_of(const workload::Node& node, const workload::Workload& workload);

foresight::Machine machine_of(const workload::Node& node, const std::vector<engine::TierOptions>& tiers);

}  // namespace terrace::rehearsal
