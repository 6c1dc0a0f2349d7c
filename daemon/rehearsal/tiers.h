// SPDX-License-Identifier: Apache-2.0
// A node of a workload as the engine is configured for it, and as the learner plans for it.
#pragma once

#include "engine/engine.h"
#include "foresight/planner.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::rehearsal {

// Tiers that never fill hold all of the workload's tensors, of every job.
std::vector<engine::TierOptions> tiers_of(const workload::Node& node, const workload::Workload& workload,
                                          std::size_t jobs);
// What each of so many jobs is guaranteed of them.
std::vector<engine::Guarantee> parts_of(const std::vector<engine::TierOptions>& tiers, std::size_t jobs);

foresight::Machine machine_of(const workload::Node& node, const std::vector<engine::TierOptions>& tiers);

}  // namespace terrace::rehearsal
