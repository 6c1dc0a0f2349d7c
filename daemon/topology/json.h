// SPDX-License-Identifier: Apache-2.0
// A machine as JSON, for the administration's GetTopology and `terracectl topology`.
#pragma once

#include <string>

#include "topology/machine.h"

namespace terrace::topology {

// One object: numa_nodes (os_index, bytes, cpus, huge_pages, huge_pages_free), gpus and block_devices (name, numa_node
// or null), memory_bytes, memory_limit_source, memlock_bytes and open_files_max (null:
// unlimited), kernel_version, io_uring.
std::string to_json(const Machine& machine);

}  // namespace terrace::topology
