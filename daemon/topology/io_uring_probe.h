// SPDX-License-Identifier: Apache-2.0
// What io_uring can do for this process, found by trying. Internal to topology.
#pragma once

#include <string>

#include "topology/machine.h"

namespace terrace::topology {

// Makes rings and closes them again. `root` stands before /proc, for why a ring could not be made.
IoUring probe_io_uring(const std::string& root);

}  // namespace terrace::topology
