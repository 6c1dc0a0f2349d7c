// SPDX-License-Identifier: Apache-2.0
// What a schedule chooses between on one link: to keep bytes in memory from one use to another, or to move them.
// Internal to workload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::workload {

// Bytes that are kept, and then take room at `runs` runs from `first` on, or moved. Runs are counted around the end.
struct Item {
  std::size_t first = 0;
  std::size_t runs = 0;  // at least 1, less than there are
  std::uint64_t bytes = 0;
};

// One direction of one link, over one repetition.
struct Choices {
  std::vector<Item> items;
  // By run: what takes room there in any case. For the way out, less what is leased of items that go past the run,
  // since those are counted as items.
  std::vector<std::uint64_t> taken_bytes;
  std::uint64_t always_bytes = 0;  // moved in any case
};

// Bytes that count in a window of consecutive runs if `run` is in it, it begins at one of the last `begins` runs up to
// there, and ends at one of the first `ends` runs from there. Both are at least 1 and at most all runs.
struct Demand {
  std::size_t run = 0;
  std::size_t begins = 0;
  std::size_t ends = 0;
  std::uint64_t bytes = 0;
};

// Whether what `run` leases is in the memory behind the link: HBM for the one, HBM or host for the other.
enum class LinkName : std::uint8_t { kHbm, kBlock };
constexpr bool inside(LinkName link, const Run& run) { return link == LinkName::kBlock || run.place == Place::kHbm; }

Choices inward(const Workload& workload, LinkName link);
Choices outward(const Workload& workload, LinkName link);
// What a window of runs owes at its end: born in the memory behind `link` and still to be read. By the run that writes.
std::vector<Demand> owed(const Workload& workload, LinkName link);
// What a window of runs wants at its beginning: read in the memory behind `link` before anything else is done there
// with the tensor. What was last written elsewhere counts in any window. By the run that reads.
std::vector<Demand> wanted(const Workload& workload, LinkName link);

}  // namespace terrace::workload
