// SPDX-License-Identifier: Apache-2.0
// Workloads of models that nobody here trains, from their shapes (docs/reference/workloads-made.md, "Made workloads").
#pragma once

#include <array>
#include <cstdint>

#include "terrace/error.h"
#include "workload/model.h"
#include "workload/workload.h"

namespace terrace::workload {

// The speeds that compute times come from, of one H100 SXM (its data sheet): dense bf16, and HBM3.
inline constexpr double kPeakFlopPerS = 989e12;
inline constexpr double kHbmBytesPerS = 3.35e12;
// Tensors of weights, gradients and optimizer states have at most so many parameters: larger ones are cut, so that the
// optimizer steps through them in pieces.
inline constexpr std::uint64_t kPieceParametersMax = std::uint64_t{1} << 28;

// What one rank trains, and how.
struct Recipe {
  Model model;
  std::uint64_t gpus = 1;           // of the whole job; stages of gpus / stages ranks, which shard all states (ZeRO-3)
  std::uint64_t batch = 1;          // sequences of each rank's micro-batch
  std::uint64_t micro_batches = 1;  // in a step, their gradients accumulated
  std::array<bool, 5>
      offload{};           // by Class: the daemon's; the trainer keeps the others, and the file does not have them
  bool recompute = false;  // activations of a layer are computed again for its backward pass
  std::uint64_t grad_bytes = 2;  // of a gradient: 2 (bf16) or 4 (fp32)
  std::uint64_t experts = 0;     // feed-forward layers of a mixture, of all ranks of a stage together; 0: no mixture
  std::uint64_t experts_active = 2;  // that each token goes through
  double experts_idle = 0.25;        // share of a rank's experts that no token of a micro-batch chooses
  std::uint64_t stages = 1;          // of a pipeline, scheduled 1F1B
  std::uint64_t stage = 0;           // the one that this rank is in
  Place optimizer_place = Place::kHbm;
  double optimizer_bytes_per_s = kHbmBytesPerS;  // of the memory that the optimizer works in
  double mfu = 0.4;                              // share of kPeakFlopPerS that is reached
  std::uint64_t steps = 1;                       // in the file; only a mixture's differ from each other
  std::uint64_t seed = 1;                        // of a mixture's routes

  bool offloads(Class tensor_class) const { return offload[static_cast<std::size_t>(tensor_class)]; }
};

struct Generated {
  Workload workload;                  // as read() takes it
  std::uint64_t kept_bytes = 0;       // of what is not offloaded, whether or not it is there at once
  std::uint64_t held_parameters = 0;  // that this rank holds: its shards
};

// The same recipe gives the same workload. InvalidArgument names what cannot be: the limits of
// docs/reference/workloads-made.md.
Result<Generated> generate(const Recipe& recipe);

}  // namespace terrace::workload
