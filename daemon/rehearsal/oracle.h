// SPDX-License-Identifier: Apache-2.0
// Who knows the future: the next use of each tensor, from the workload itself. For comparison alone; no daemon has one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/policy/policy.h"
#include "workload/workload.h"

namespace terrace::rehearsal {

class Oracle {
 public:
  explicit Oracle(const workload::Workload& workload);

  // The run that is under way, counted from the first one of the first repetition.
  std::uint64_t run = 0;
  // The run after this one that uses the tensor; UINT64_MAX: none ever.
  std::uint64_t next_use(std::size_t tensor) const;

 private:
  std::uint64_t runs_;
  std::vector<std::vector<std::uint64_t>> uses_;  // by tensor, ascending, within a repetition
};

// Belady's MIN on demand: the farthest next use goes first. `oracle` must outlive it; slot N is tensor N's.
std::unique_ptr<engine::Policy> make_demand_min_policy(const Oracle& oracle);

}  // namespace terrace::rehearsal
