// SPDX-License-Identifier: Apache-2.0
// The parts of resolve() that have a file of their own. Internal to config.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "config/findings.h"
#include "topology/cuda_probe.h"
#include "topology/machine.h"

namespace terrace::config {

// Both figures, so that two that round alike can be told apart.
std::string exact(std::uint64_t bytes);

std::uint64_t part_of(std::uint64_t whole, double percent);

// Puts the capacity of a tier that clients map down to whole segments; says so where a size was written.
void round_to_segments(TierConfig& tier, Findings& findings);

// How many tiers "auto" and "cuda:all" come to; of a driver that fails it is one, which says so.
std::size_t gpu_count(const topology::Cuda& cuda);

// A tier of a GPU: its capacity, its name, and what of it does not fit. One that fails is a tier all the same, so that
// the others keep their numbers: it is as large as it would be, as far as that is known.
void resolve_gpu(TierConfig& tier, const topology::Cuda& cuda, Findings& findings);

// Has memory that feeds GPUs taken near them (TierConfig::near_node) where all of them hang off one node and none is
// configured; warns of GPUs that are far from the configured one.
void place_near_gpus(Config& config, const topology::Machine& machine, Findings& findings);

// A block tier's files and room: looks at each path, and puts the capacity in bytes, in whole stripes.
void resolve_block(TierConfig& tier, Findings& findings);

// Where the daemon is to listen: the sockets' paths, and the address of /metrics.
void check_listening(const Config& config, Findings& findings);

// Lowers limits.connections_max to what the descriptors that the daemon may have are enough for, so that it never runs
// out of them; says so.
void fit_connections(Config& config, std::uint64_t open_files_max, Findings& findings);

}  // namespace terrace::config
