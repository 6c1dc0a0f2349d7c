// SPDX-License-Identifier: Apache-2.0
// A configuration set against the machine it is to run on.
#pragma once

#include <string>

#include "config/config.h"
#include "config/parse.h"
#include "terrace/error.h"
#include "topology/machine.h"
#include "topology/report.h"

namespace terrace::config {

// Whether resolve() needs to know which GPUs the driver gives (Machine::cuda).
bool asks_for_gpus(const Config& config);

// `config` with every capacity in bytes (a part is rounded down to 2 MiB, a size to whole pages), one memory tier of a
// quarter of the memory where no tier is configured, a tier for each GPU where they are asked for, and warnings for
// what is allowed but hardly meant. InvalidArgument with a line for everything that this machine cannot give (more
// memory than there is or than the cgroup allows, a NUMA node or GPU that is not there, more room than the file systems
// have), with both numbers.
Result<Config> resolve(const Config& config, const topology::Machine& machine);

// What the daemon does without a configuration: sockets in `runtime_dir`, one memory tier of a quarter of the memory
// that may be used. Already resolved. InvalidArgument if `runtime_dir` is empty or too long for a socket's path.
Result<Config> defaults(const topology::Machine& machine, const std::string& runtime_dir = default_runtime_dir());

// What a resolved configuration takes of the machine, for topology's report and its checks. Looks at each block path:
// errors as topology::inspect_block_path.
Result<topology::Taken> taken(const Config& config, const topology::Sources& sources = {});

}  // namespace terrace::config
