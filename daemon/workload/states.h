// SPDX-License-Identifier: Apache-2.0
// The tensors of the rank that a recipe describes, by what computes with them. Internal to workload.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "workload/generator.h"

namespace terrace::workload {

// Nothing where the class is not offloaded.
using MaybeId = std::optional<TensorId>;

// So much of a part as the optimizer steps through at once.
struct Piece {
  std::uint64_t parameters = 0;
  MaybeId param, grad, optim;
};

// What computes in one go: an embedding, attention, a feed-forward layer or an expert, or the head.
struct Part {
  std::string name;
  double forward_flop = 0;          // of a micro-batch
  std::vector<std::size_t> pieces;  // indices into States::pieces: this rank's shard
  MaybeId gathered_param;           // the whole part, while it computes
  MaybeId gathered_grad;
  std::vector<MaybeId> acts;  // by micro-batch in flight; one where they are computed again
};

struct Layer {
  Part attention;
  std::vector<Part> feed_forward;    // one, or this rank's experts
  std::vector<MaybeId> checkpoints;  // by micro-batch in flight
};

struct States {
  std::vector<Piece> pieces;
  std::optional<Part> embedding;  // in the first stage
  std::vector<Layer> layers;
  std::optional<Part> head;     // in the last stage
  std::uint64_t in_flight = 1;  // micro-batches whose activations are there at once
};

// Declares them in `generated`. The recipe has been checked.
States declare_states(const Recipe& recipe, Generated& generated);

}  // namespace terrace::workload
