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

// A version of a tensor: what a run wrote into memory, needed until its last read.
struct Version {
  std::size_t born = 0;  // the run
  std::size_t runs = 0;  // from there to the run that reads it last, at least 1; around the end, at most all of them
  std::uint64_t bytes = 0;
};

// Whether what `run` leases is in the memory behind the link: HBM for the one, HBM or host for the other.
enum class LinkName : std::uint8_t { kHbm, kBlock };
constexpr bool inside(LinkName link, const Run& run) { return link == LinkName::kBlock || run.place == Place::kHbm; }

Choices inward(const Workload& workload, LinkName link);
Choices outward(const Workload& workload, LinkName link);
// What is born in the memory behind `link` and read after the run that writes it, by birth.
std::vector<Version> versions(const Workload& workload, LinkName link);

}  // namespace terrace::workload
