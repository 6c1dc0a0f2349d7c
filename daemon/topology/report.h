// SPDX-License-Identifier: Apache-2.0
// The start-up report: what was found, what is taken, and what could not be had and what that costs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "terrace/error.h"
#include "topology/block_path.h"
#include "topology/machine.h"

namespace terrace::topology {

// "8 MiB", or "unlimited" for kUnlimited.
std::string limit_text(std::uint64_t bytes);

// What the daemon means to take of the machine.
struct Taken {
  std::vector<std::string> tiers;     // a line each, fastest first
  std::uint64_t pinned_bytes = 0;     // memory that block I/O is to be registered for; 0: no block tier
  std::uint64_t huge_page_bytes = 0;  // memory that would be in huge pages if there were enough
  std::vector<BlockPath> block_paths;
};

// Something that the daemon goes on without.
struct Lack {
  std::string what;  // "memlock is 8 MiB, the tiers have 24 GiB"
  std::string cost;  // what is worse for it
  std::string cure;  // how to have it
};

std::vector<Lack> lacks(const Machine& machine, const Taken& taken);

// FailedPrecondition, naming everything, if the daemon cannot run here: no io_uring, a block path without O_DIRECT or
// with alignment beyond 4 KiB; and where `strict`, anything that lacks() returns.
Result<void> require(const Machine& machine, const Taken& taken, bool strict);

// The report, one screen of text with a newline at the end of each line.
std::string describe(const Machine& machine, const Taken& taken, std::span<const Lack> missing);

}  // namespace terrace::topology
