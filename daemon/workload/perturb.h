// SPDX-License-Identifier: Apache-2.0
// Steps that are not quite alike: a part of a workload's accesses is changed at random.
#pragma once

#include <cstdint>

#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::workload {

struct Perturbation {
  double share = 0;  // of the accesses: a run's lease of a tensor is one
  std::uint64_t seed = 1;
  std::uint64_t repetitions = 1;  // of the workload, each changed anew
};

// `workload` so many times in a row. Each access is chosen with the probability `share`. Of those chosen, a third is
// replaced by a read of a random tensor, a third gets such a read beside it, in its run, and a third is dropped. The
// random tensor is one of all that have content then, and whose lease leaves half of the run's place on `node` to
// others; where 64 draws find none, the access stays as it is. A write that gives a tensor its content is never dropped
// or replaced: another read stands beside it. Nothing else changes, so that a reader takes the result.
Workload perturbed(const Workload& workload, const Node& node, const Perturbation& perturbation);

}  // namespace terrace::workload
