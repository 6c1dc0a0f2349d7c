// SPDX-License-Identifier: Apache-2.0
// A configuration for a machine that has none yet, each value with the reason for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proposal/places.h"
#include "terrace/error.h"
#include "topology/machine.h"

namespace terrace::proposal {

// What the user says; the rest is chosen here.
struct Wishes {
  std::optional<std::uint64_t> memory_bytes;  // of the memory tier
  std::optional<std::uint64_t> block_bytes;   // of the block tier
  std::vector<Place> places;                  // for block files; empty: those that were found
  std::string sockets_folder;                 // empty: the daemon's default
  std::optional<std::string> metrics_address;
};

// A size, and why it is that.
struct Sized {
  std::uint64_t bytes = 0;
  std::string why;
};

struct BlockChoice {
  Sized capacity;
  std::vector<Place> places;
};

struct Proposal {
  std::string machine;  // what was seen, in a line
  Sized memory;
  std::optional<std::string> device_why;  // a device tier of the machine's GPUs, and why so large; none: no such tier
  std::string no_device_why;
  std::optional<BlockChoice> block;
  std::string no_block_why;
  Wishes wishes;
};

// Of each GPU's memory, the part that the device tier is given.
inline constexpr unsigned kDevicePercent = 60;

// Chooses sizes that leave the system and the trainers room. `has_driver`: the NVIDIA driver is loaded. `found`:
// find_places(). InvalidArgument if a wish is more than the machine has.
Result<Proposal> propose(const topology::Machine& machine, bool has_driver, const std::vector<Place>& found,
                         const Wishes& wishes);

// Whether the NVIDIA driver is loaded; `root` stands before /proc.
bool has_nvidia_driver(const std::string& root = "");

}  // namespace terrace::proposal
