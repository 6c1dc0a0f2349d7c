// SPDX-License-Identifier: Apache-2.0
// The fewest bytes that must be moved where not everything can be kept. Internal to workload; keeps the flow library
// out of every header.
#pragma once

#include <cstdint>

#include "workload/items.h"

namespace terrace::workload {

// At most the bytes that any schedule moves in a memory of `capacity_bytes`, on average over repetitions. Each item is
// kept or moved, in parts if need be, and what is kept fits beside what is taken at every run; that relaxation is a
// linear program, whose rows, each less the one before it, are a network on a circle (FOO: Berger, Beckmann,
// Harchol-Balter, SIGMETRICS 2018). Every run's taken bytes must be at most the capacity.
std::uint64_t fewest_bytes(const Choices& choices, std::uint64_t capacity_bytes);

}  // namespace terrace::workload
