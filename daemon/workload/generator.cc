// SPDX-License-Identifier: Apache-2.0
#include "workload/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "workload/reader.h"
#include "workload/states.h"

namespace terrace::workload {
namespace {

constexpr double kAdamParamBytes = 28;  // read: states 12, gradient 2; written: states 12, weight 2

void add(std::vector<TensorId>& ids, const MaybeId& id) {
  if (id) ids.push_back(*id);
}

MaybeId at(const std::vector<MaybeId>& ids, std::uint64_t slot) {
  return ids.empty() ? std::nullopt : ids[slot % ids.size()];
}

// Writes the runs of a rank, step by step.
class Rank {
 public:
  Rank(const Recipe& recipe, States states, Workload& workload)
      : recipe_(recipe), states_(std::move(states)), workload_(workload), random_(recipe.seed) {}

  void step() {
    has_grad_.assign(states_.pieces.size(), false);
    if (recipe_.stages > 1) {
      pipeline();
    } else {
      for (std::uint64_t micro_batch = 0; micro_batch < recipe_.micro_batches; ++micro_batch) {
        if (micro_batch > 0) end_step(StepKind::kAccum);
        forward(0);
        backward(0);
      }
    }
    optimizer();
    end_step(StepKind::kTrain);
  }

 private:
  using Route = std::vector<std::size_t>;  // the feed-forward parts of a layer that compute, in their order

  void end_step(StepKind kind) { workload_.steps.push_back({.kind = kind, .end = workload_.runs.size()}); }

  Duration time_of(double flop) const {
    constexpr auto kMax = 2 * static_cast<double>(kWorkloadComputeMax.count());  // more than is taken
    return Duration(std::llround(std::min(flop / (kPeakFlopPerS * recipe_.mfu) * 1e9, kMax)));
  }

  // For the other stages.
  void wait(double flop) {
    if (flop > 0) add_run("wait", time_of(flop));
  }

  Run& add_run(std::string name, Duration compute, Place place = Place::kHbm) {
    workload_.runs.push_back(
        {.name = std::move(name), .compute = compute, .place = place, .read = {}, .write = {}, .free = {}});
    return workload_.runs.back();
  }

  // A run that computes with the weights of `part`.
  Run& add_run(const Part& part, std::string_view what, double flop) {
    Run& run = add_run(fmt::format("{}.{}", part.name, what), time_of(flop));
    for (const std::size_t piece : part.pieces) add(run.read, states_.pieces[piece].param);
    add(run.write, part.gathered_param);
    add(run.free, part.gathered_param);
    return run;
  }

  void forward_part(const Part& part, std::string_view what, double flop, const MaybeId& act) {
    add(add_run(part, what, flop).write, act);
  }

  void backward_part(const Part& part, double flop, const MaybeId& act) {
    Run& run = add_run(part, "backward", 2 * flop);
    add(run.read, act);
    add(run.free, act);
    add(run.write, part.gathered_grad);
    add(run.free, part.gathered_grad);
    for (const std::size_t piece : part.pieces) {
      if (has_grad_[piece]) add(run.read, states_.pieces[piece].grad);
      add(run.write, states_.pieces[piece].grad);
      has_grad_[piece] = true;
    }
  }

  // Which experts get tokens, in the order in which they are worked on. Without a mixture: the one feed-forward layer.
  Route route(const Layer& layer) {
    Route route;
    for (std::size_t part = 0; part < layer.feed_forward.size(); ++part) route.push_back(part);
    for (std::size_t left = route.size(); left > 1; --left) std::swap(route[left - 1], route[random_() % left]);
    const double idle = recipe_.experts == 0 ? 0 : recipe_.experts_idle * static_cast<double>(route.size());
    route.resize(std::max<std::size_t>(1, route.size() - static_cast<std::size_t>(idle)));
    return route;
  }

  // All tokens go through the experts that get any.
  static double flop_of(const Part& part, const Route& route) {
    return part.forward_flop / static_cast<double>(route.size());
  }

  void forward_layer(const Layer& layer, const Route& route, std::string_view what, std::uint64_t slot, bool keep) {
    forward_part(layer.attention, what, layer.attention.forward_flop,
                 keep ? at(layer.attention.acts, slot) : std::nullopt);
    for (const std::size_t index : route) {
      const Part& part = layer.feed_forward[index];
      forward_part(part, what, flop_of(part, route), keep ? at(part.acts, slot) : std::nullopt);
    }
  }

  void forward(std::uint64_t slot) {
    routes_.resize(states_.in_flight);
    routes_[slot].clear();
    if (states_.embedding) forward_part(*states_.embedding, "forward", states_.embedding->forward_flop, std::nullopt);
    for (const Layer& layer : states_.layers) {
      const std::size_t first = workload_.runs.size();
      routes_[slot].push_back(route(layer));
      forward_layer(layer, routes_[slot].back(), "forward", slot, !recipe_.recompute);
      add(workload_.runs[first].write, at(layer.checkpoints, slot));
    }
    if (states_.head) forward_part(*states_.head, "forward", states_.head->forward_flop, std::nullopt);
  }

  void backward_layer(const Layer& layer, const Route& route, std::uint64_t slot) {
    if (recipe_.recompute) {
      const std::size_t first = workload_.runs.size();
      forward_layer(layer, route, "recompute", slot, true);
      add(workload_.runs[first].read, at(layer.checkpoints, slot));
      add(workload_.runs[first].free, at(layer.checkpoints, slot));
    }
    for (auto index = route.rbegin(); index != route.rend(); ++index) {
      const Part& part = layer.feed_forward[*index];
      backward_part(part, flop_of(part, route), at(part.acts, slot));
    }
    backward_part(layer.attention, layer.attention.forward_flop, at(layer.attention.acts, slot));
  }

  void backward(std::uint64_t slot) {
    if (states_.head) backward_part(*states_.head, states_.head->forward_flop, std::nullopt);
    for (std::size_t left = states_.layers.size(); left > 0; --left) {
      backward_layer(states_.layers[left - 1], routes_[slot][left - 1], slot);
    }
    if (states_.embedding) backward_part(*states_.embedding, states_.embedding->forward_flop, std::nullopt);
  }

  // One forward, one backward (Narayanan et al., SC 2021): the later stages are filled, each forward pass is then
  // followed by a backward pass, and the rest are drained. A stage waits for the others for (stages - 1) forward and
  // backward passes.
  void pipeline() {
    const std::uint64_t behind = recipe_.stages - 1 - recipe_.stage;
    const std::uint64_t filled = std::min(recipe_.micro_batches, behind);
    wait(static_cast<double>(recipe_.stage) * stage_flop());
    for (std::uint64_t micro_batch = 0; micro_batch < filled; ++micro_batch) forward(micro_batch);
    std::uint64_t next = filled;
    for (std::uint64_t micro_batch = 0; micro_batch < recipe_.micro_batches; ++micro_batch) {
      if (next < recipe_.micro_batches) forward(next++ % states_.in_flight);
      const double passes = recipe_.recompute ? 4 : 3;
      if (micro_batch == 0) wait(static_cast<double>(behind) * passes * stage_flop());
      backward(micro_batch % states_.in_flight);
    }
    wait(static_cast<double>(recipe_.stage) * (recipe_.recompute ? 3 : 2) * stage_flop());
  }

  // Of a forward pass of this stage, without embedding and head.
  double stage_flop() const {
    double flop = 0;
    for (const Layer& layer : states_.layers)
      flop += layer.attention.forward_flop + layer.feed_forward.front().forward_flop;
    return flop;
  }

  void optimizer() {
    for (std::size_t index = 0; index < states_.pieces.size(); ++index) {
      if (!has_grad_[index]) continue;  // an expert that no token chose
      const Piece& piece = states_.pieces[index];
      const double seconds = static_cast<double>(piece.parameters) * kAdamParamBytes / recipe_.optimizer_bytes_per_s;
      Run& run = add_run(fmt::format("adam.{}", index), Duration(std::llround(seconds * 1e9)), recipe_.optimizer_place);
      for (const MaybeId& id : {piece.grad, piece.optim}) add(run.read, id);
      for (const MaybeId& id : {piece.optim, piece.param}) add(run.write, id);
      add(run.free, piece.grad);
    }
  }

  const Recipe& recipe_;
  const States states_;
  Workload& workload_;
  std::mt19937_64 random_;
  std::vector<bool> has_grad_;              // by piece, in this step
  std::vector<std::vector<Route>> routes_;  // by micro-batch in flight and layer
};

// What is wrong with it; empty: nothing.
std::string problem(const Recipe& recipe) {
  constexpr std::uint64_t kMost = 1 << 20;
  const auto counted = [](std::uint64_t number) { return number >= 1 && number <= kMost; };
  if (!counted(recipe.gpus) || !counted(recipe.batch) || !counted(recipe.micro_batches) || !counted(recipe.steps)) {
    return fmt::format("GPUs, batch, micro-batches and steps are from 1 to {}", kMost);
  }
  if (!counted(recipe.stages) || recipe.gpus % recipe.stages != 0 || recipe.stages > recipe.model.layers) {
    return fmt::format("{} GPUs with {} layers cannot be {} stages; the stages divide the GPUs, and each has a layer",
                       recipe.gpus, recipe.model.layers, recipe.stages);
  }
  if (recipe.stage >= recipe.stages) {
    return fmt::format("there is no stage {}; the last one is {}", recipe.stage, recipe.stages - 1);
  }
  const std::uint64_t ranks = recipe.gpus / recipe.stages;
  if (recipe.experts > kMost || recipe.experts % ranks != 0) {
    return fmt::format("{} experts cannot be spread over {} ranks; each has as many", recipe.experts, ranks);
  }
  if (recipe.experts > 0 && (recipe.experts_active < 1 || recipe.experts_active > recipe.experts)) {
    return fmt::format("of {} experts, {} cannot be active; at least one, and at most all", recipe.experts,
                       recipe.experts_active);
  }
  if (!(recipe.experts_idle >= 0 && recipe.experts_idle < 1))
    return "the share of idle experts is at least 0 and below 1";
  if (!(recipe.mfu > 0 && recipe.mfu <= 1)) return "the share of the peak that is reached is above 0 and at most 1";
  if (!(recipe.optimizer_bytes_per_s >= 1)) return "the optimizer's memory has a bandwidth";
  if (std::ranges::none_of(recipe.offload, [](bool offloaded) { return offloaded; })) return "no class is offloaded";
  if (recipe.grad_bytes != 2 && recipe.grad_bytes != 4) return "a gradient has 2 or 4 bytes";
  return "";
}

std::string describe(const Recipe& recipe) {
  std::string text = fmt::format("terrace-sim generate: {}, {} GPUs, batch {} x {}", recipe.model.name, recipe.gpus,
                                 recipe.batch, recipe.micro_batches);
  if (recipe.recompute) text += ", recompute";
  if (recipe.experts > 0)
    text += fmt::format(", {} of {} experts, seed {}", recipe.experts_active, recipe.experts, recipe.seed);
  if (recipe.stages > 1) text += fmt::format(", stage {} of {}", recipe.stage, recipe.stages);
  return text + fmt::format(", MFU {}", recipe.mfu);
}

}  // namespace

Result<Generated> generate(const Recipe& recipe) {
  if (std::string wrong = problem(recipe); !wrong.empty()) return fail(ErrorCode::kInvalidArgument, std::move(wrong));
  Generated generated;
  generated.workload.name = recipe.model.name;
  generated.workload.source = describe(recipe);
  States states = declare_states(recipe, generated);
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : generated.workload.tensors) {
    bytes += std::min(tensor.bytes, kWorkloadBytesMax);
    if (bytes > kWorkloadBytesMax)
      return fail(ErrorCode::kInvalidArgument, "the tensors have more than 2^53 bytes together");
  }
  Rank rank(recipe, std::move(states), generated.workload);
  for (std::uint64_t step = 0; step < recipe.steps; ++step) rank.step();
  Duration compute{};
  for (const Run& run : generated.workload.runs) {
    compute += run.compute;
    if (compute > kWorkloadComputeMax)
      return fail(ErrorCode::kInvalidArgument, "the runs take more than a year together");
  }
  return generated;
}

}  // namespace terrace::workload
