// SPDX-License-Identifier: Apache-2.0
// What a model takes of a node, and what another amount of DRAM would change (docs/guides/size-a-node.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "forecast/endurance.h"
#include "forecast/outlook.h"
#include "workload/generator.h"
#include "workload/node.h"

namespace terrace::forecast {

struct PlanOptions {
  workload::Recipe recipe;
  workload::Node node;  // the share of one of its GPUs, as load_node() gives it
  std::vector<std::uint64_t>
      dram_bytes{};                // of a node, to be looked at beside its own; empty: sizes that modules come in
  Drives drives{};                 // of a node; count 0: as many as hold its block tier
  std::optional<Source> source{};  // where the curve's figures come from; none: rehearsed where that does not take long
  std::function<void(std::string_view what)> progress{};
};

// One size of DRAM.
struct Point {
  std::uint64_t dram_bytes = 0;            // of a node
  Result<Outlook> outlook;                 // of a rank; or why the model does not run
  std::optional<workload::Bound> bound{};  // of a rank: what no schedule beats; where it runs
  std::optional<Wear> wear{};              // of a node's drives
};

struct Plan {
  workload::Recipe recipe;
  workload::Generated made;
  std::uint64_t peak_bytes = 0;  // of content at once, of a rank
  workload::Node node;           // a rank's share
  std::uint64_t ranks = 1;       // on each node
  std::uint64_t nodes = 1;
  Drives drives;             // of a node
  Point own;                 // with the node's own DRAM; it runs
  std::vector<Point> curve;  // by size, the node's own among them if it has an end; empty: there is no DRAM to change
  // What would make the drives last, where they do not; neither is looked for where they do.
  std::optional<std::uint64_t> sparing_dram_bytes;     // the least of the curve's
  std::optional<std::uint64_t> sparing_micro_batches;  // in a step, by what twice as many change
};

// The same options give the same plan. InvalidArgument: the recipe (see generate()), or GPUs that do not fill the
// nodes. ResourceExhausted: it does not run on this node; says why, and which DRAM of the curve would do.
Result<Plan> make_plan(const PlanOptions& options);

// The most bytes of content that the workload has at once.
std::uint64_t peak_content_bytes(const workload::Workload& workload);

}  // namespace terrace::forecast
