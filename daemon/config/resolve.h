// SPDX-License-Identifier: Apache-2.0
// A configuration set against the machine it is to run on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/parse.h"
#include "terrace/error.h"
#include "topology/machine.h"
#include "topology/report.h"

namespace terrace::config {

// Whether resolve() needs to know which GPUs the driver gives (Machine::cuda).
bool asks_for_gpus(const Config& config);
// The same of one of them.
bool asks_for_gpu(const Config& config, int ordinal);

// The draft's configuration with every capacity in bytes and rounded down to what is really used (whole segments, whole
// stripes), one memory tier of a quarter of the memory where no tier is configured, a tier for each GPU where they are
// asked for, memory taken near them first, and warnings for what is allowed but hardly meant, and for GPUs that fail
// (TierConfig::failure). InvalidArgument with a line for each of the draft's problems and for everything that could not
// be had at a start on this machine (more memory than there is or than the cgroup allows, a NUMA node or GPU that is
// not there, more room than the file systems have, a file that is somebody's, a folder that cannot be written, an
// address that cannot be listened on), with both numbers. What another process holds just now is not looked at: so a
// configuration can be checked beside the daemon that runs on it.
Result<Config> resolve(Draft draft, const topology::Machine& machine);
// The same of a configuration that was read without a problem.
Result<Config> resolve(const Config& config, const topology::Machine& machine);

// The configuration where there is no file: see defaults().
Draft without_file(const std::string& runtime_dir = default_runtime_dir());

// What the daemon does without a configuration: sockets in `runtime_dir`, one memory tier of a quarter of the memory
// that may be used. Already resolved. InvalidArgument if `runtime_dir` is empty or too long for a socket's path.
Result<Config> defaults(const topology::Machine& machine, const std::string& runtime_dir = default_runtime_dir());

// Whether the daemon could listen at a socket's path, now or once its folder is made: what lies there is a socket or
// nothing, and the folder, or the nearest one above it, is this user's to write. PermissionDenied, with system_error,
// or FailedPrecondition; the message says what would do. Changes nothing.
Result<void> check_socket(const std::string& path);

// The processors of the node that a resolved configuration takes memory of, only or first; empty: of none in
// particular.
std::vector<unsigned> processors_near_memory(const Config& config, const topology::Machine& machine);

// Descriptors that a daemon of a resolved configuration holds at most, with all the clients that it lets in.
std::uint64_t descriptors_at_most(const Config& config);

// What a resolved configuration takes of the machine, for topology's report and its checks. Looks at each block path:
// errors as topology::inspect_block_path.
Result<topology::Taken> taken(const Config& config, const topology::Sources& sources = {});

}  // namespace terrace::config
