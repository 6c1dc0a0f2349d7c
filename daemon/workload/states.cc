// SPDX-License-Identifier: Apache-2.0
#include "workload/states.h"

#include <fmt/format.h>

#include <algorithm>

namespace terrace::workload {
namespace {

constexpr std::uint64_t kParamBytes = 2;   // bf16
constexpr std::uint64_t kOptimBytes = 12;  // fp32: master weight, Adam's m and v

std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) { return (value + by - 1) / by; }

class Declaring {
 public:
  Declaring(const Recipe& recipe, Generated& generated)
      : recipe_(recipe), model_(recipe.model), generated_(generated), ranks_(recipe.gpus / recipe.stages) {}

  States all() {
    const bool first = recipe_.stage == 0;
    const bool last = recipe_.stage + 1 == recipe_.stages;
    states_.in_flight = std::min(recipe_.micro_batches, recipe_.stages - recipe_.stage);
    if (first) states_.embedding = part("embedding", model_.embedding_parameters(), 0, 0, ranks_);
    const std::uint64_t begin = model_.layers * recipe_.stage / recipe_.stages;
    const std::uint64_t end = model_.layers * (recipe_.stage + 1) / recipe_.stages;
    for (std::uint64_t index = begin; index < end; ++index) states_.layers.push_back(layer(index));
    if (last) states_.head = head();
    return std::move(states_);
  }

 private:
  MaybeId declare(Class tensor_class, std::uint64_t bytes, bool home, std::string key) {
    if (!recipe_.offloads(tensor_class)) {
      generated_.kept_bytes += bytes;
      return std::nullopt;
    }
    std::vector<Tensor>& tensors = generated_.workload.tensors;
    tensors.push_back({.bytes = bytes, .tensor_class = tensor_class, .home = home, .key = std::move(key)});
    return static_cast<TensorId>(tensors.size() - 1);
  }

  // One that lives while a run computes. Where its class is the trainer's own, so is it, and it is not counted.
  MaybeId declare_working(Class tensor_class, std::uint64_t bytes, std::string key) {
    if (!recipe_.offloads(tensor_class)) return std::nullopt;
    return declare(tensor_class, bytes, /*home=*/false, std::move(key));
  }

  std::vector<MaybeId> declare_acts(const std::string& name, std::uint64_t bytes, std::uint64_t slots) {
    std::vector<MaybeId> acts;
    for (std::uint64_t slot = 0; bytes > 0 && slot < slots; ++slot) {
      acts.push_back(declare(Class::kAct, bytes, /*home=*/false, fmt::format("{}.act.{}", name, slot)));
    }
    return acts;
  }

  std::vector<std::size_t> declare_pieces(const std::string& name, std::uint64_t parameters) {
    std::vector<std::size_t> pieces;
    const std::uint64_t count = divide_up(parameters, kPieceParametersMax);
    for (std::uint64_t index = 0; index < count; ++index) {
      Piece piece;
      piece.parameters = parameters * (index + 1) / count - parameters * index / count;
      const std::string key = fmt::format("{}.{}", name, index);
      piece.param = declare(Class::kParam, piece.parameters * kParamBytes, true, key + ".param");
      piece.grad = declare(Class::kGrad, piece.parameters * recipe_.grad_bytes, false, key + ".grad");
      piece.optim = declare(Class::kOptim, piece.parameters * kOptimBytes, true, key + ".optim");
      pieces.push_back(states_.pieces.size());
      states_.pieces.push_back(piece);
      generated_.held_parameters += piece.parameters;
    }
    return pieces;
  }

  // `flop` and `act_bytes` are one sequence's. Sharded by `shards`, it is put together while it computes.
  Part part(const std::string& name, std::uint64_t parameters, double flop, std::uint64_t act_bytes,
            std::uint64_t shards) {
    Part part;
    part.name = name;
    part.forward_flop = flop * static_cast<double>(recipe_.batch);
    part.pieces = declare_pieces(name, divide_up(parameters, shards));
    if (shards > 1) declare_gathered(parameters, part);
    part.acts = declare_acts(name, act_bytes * recipe_.batch, recipe_.recompute ? 1 : states_.in_flight);
    return part;
  }

  void declare_gathered(std::uint64_t parameters, Part& part) {
    part.gathered_param = declare_working(Class::kParam, parameters * kParamBytes, part.name + ".gathered");
    part.gathered_grad = declare_working(Class::kGrad, parameters * recipe_.grad_bytes, part.name + ".reduced");
  }

  Layer layer(std::uint64_t index) {
    const std::string name = fmt::format("layer.{}", index);
    Layer layer;
    if (recipe_.recompute) {
      layer.checkpoints = declare_acts(name + ".input", model_.checkpoint_bytes() * recipe_.batch, states_.in_flight);
    }
    layer.attention = part(name + ".attention", model_.attention_parameters(), model_.attention_flop(),
                           model_.attention_activation_bytes(), ranks_);
    if (recipe_.experts == 0) {
      layer.feed_forward.push_back(part(name + ".feed_forward", model_.feed_forward_parameters(),
                                        model_.feed_forward_flop(), model_.feed_forward_activation_bytes(), ranks_));
      return layer;
    }
    // An expert's weights are whole on the rank that has it, and tokens are sent there; on average a rank gets as many
    // as it sends. Activations are sized for an even spread.
    const std::uint64_t experts = recipe_.experts / ranks_;
    for (std::uint64_t expert = 0; expert < experts; ++expert) {
      layer.feed_forward.push_back(
          part(fmt::format("{}.expert.{}", name, expert), model_.feed_forward_parameters(),
               model_.feed_forward_flop() * static_cast<double>(recipe_.experts_active),
               divide_up(model_.feed_forward_activation_bytes() * recipe_.experts_active, experts), 1));
    }
    return layer;
  }

  Part head() {
    if (!model_.tied || !states_.embedding) {
      return part("head", model_.embedding_parameters(), model_.head_flop(), 0, ranks_);
    }
    Part head = *states_.embedding;
    head.name = "head";
    head.forward_flop = model_.head_flop() * static_cast<double>(recipe_.batch);
    return head;
  }

  const Recipe& recipe_;
  const Model& model_;
  Generated& generated_;
  std::uint64_t ranks_;  // of a stage
  States states_;
};

}  // namespace

States declare_states(const Recipe& recipe, Generated& generated) { return Declaring(recipe, generated).all(); }

}  // namespace terrace::workload
