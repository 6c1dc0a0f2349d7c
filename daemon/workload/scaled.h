// SPDX-License-Identifier: Apache-2.0
// The same workload on a smaller machine: fewer bytes, other times.
#pragma once

#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::workload {

struct Scale {
  double bytes = 1;  // what all sizes are divided by, at least 1
  double time = 1;   // what compute times are multiplied by
};

// `workload` with each tensor's bytes divided and rounded to 4 KiB, of which it has at least one, and each compute time
// multiplied and rounded to the nanosecond.
Workload scaled(const Workload& workload, const Scale& scale);

// `node` with the capacities divided, in 2 MiB; links as they are. A tier that never fills gets what holds all tensors
// of `workload`, which is scaled already, with a sixteenth to spare.
Node scaled(const Node& node, const Scale& scale, const Workload& workload);

// The factor of compute times by which the HBM links of two nodes keep their proportion to what is computed, where
// sizes are divided by `bytes`: `from` is whom the times are of. Both have such links.
double time_scale(const Node& from, const Node& to, double bytes);

}  // namespace terrace::workload
