// SPDX-License-Identifier: Apache-2.0
// Shows that made workloads have the bytes and the compute time that follow from their model's shape, that readers take
// every one of them, and that sharding, accumulation, recomputation, mixtures and pipelines look as they should.
#include "workload/generator.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <sstream>

#include "workload/reader.h"
#include "workload/writer.h"

namespace terrace::workload {
namespace {

using testing::HasSubstr;

Recipe recipe_of(std::string_view name) {
  Recipe recipe;
  recipe.model = *model(name);
  recipe.offload = {true, true, true, true, false};
  return recipe;
}

Generated made(const Recipe& recipe) {
  Result<Generated> generated = generate(recipe);
  EXPECT_TRUE(generated) << generated.error().message;
  if (!generated) return {};
  std::ostringstream out;
  write(generated->workload, out);
  const Result<Workload> back = read(out.str(), recipe.model.name);
  EXPECT_TRUE(back) << back.error().message;
  if (back) {
    EXPECT_EQ(*back, generated->workload);
  }
  return *std::move(generated);
}

std::uint64_t bytes_of(const Workload& workload, Class tensor_class) {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : workload.tensors) bytes += tensor.tensor_class == tensor_class ? tensor.bytes : 0;
  return bytes;
}

double seconds(const Workload& workload) { return std::chrono::duration<double>(compute_time(workload.runs)).count(); }

// The table of models in docs/reference/workloads-made.md: parameters, bf16 bytes of a layer, 16 bytes for each
// parameter.
struct Known {
  const char* name;
  double parameters;
  double layer_bytes;
  double state_bytes;
};

class Shapes : public testing::TestWithParam<Known> {};

TEST_P(Shapes, HaveTheBytesOfTheTable) {
  const Known& known = GetParam();
  Recipe recipe = recipe_of(known.name);
  recipe.offload = {true, true, true, false, false};
  const auto near = [](double value, double right) { EXPECT_NEAR(value / right, 1, 0.005); };
  near(static_cast<double>(recipe.model.parameters()), known.parameters);
  near(2 * static_cast<double>(recipe.model.layer_parameters()), known.layer_bytes);
  const Generated generated = made(recipe);
  EXPECT_EQ(generated.held_parameters, recipe.model.parameters());
  const Workload& workload = generated.workload;
  const std::uint64_t param = bytes_of(workload, Class::kParam);
  const std::uint64_t grad = bytes_of(workload, Class::kGrad);
  const std::uint64_t optim = bytes_of(workload, Class::kOptim);
  EXPECT_EQ(param, 2 * recipe.model.parameters());
  EXPECT_EQ(grad, param);
  EXPECT_EQ(optim, 6 * param);
  near(static_cast<double>(param + grad + optim), known.state_bytes);
}

INSTANTIATE_TEST_SUITE_P(, Shapes,
                         testing::Values(Known{"gpt2-1.5b", 1.555e9, 61.4e6, 24.9e9},
                                         Known{"llama3-8b", 8.03e9, 436e6, 128.5e9},
                                         Known{"llama3-70b", 70.6e9, 1.71e9, 1129e9},
                                         Known{"gpt3-175b", 174.6e9, 3.62e9, 2794e9},
                                         Known{"1t", 1008e9, 15.7e9, 16129e9}),
                         [](const testing::TestParamInfo<Known>& shape) {
                           std::string name = shape.param.name;
                           std::erase_if(name, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
                           return name;
                         });

// Seconds of one sequence's forward pass through the layers.
double layers_forward(const Model& model) {
  const auto s = static_cast<double>(model.sequence);
  const auto h = static_cast<double>(model.hidden);
  return static_cast<double>(model.layers) * (2 * static_cast<double>(model.layer_parameters()) * s + 2 * s * s * h) /
         (989e12 * 0.4);
}

double head_forward(const Model& model) {
  return 2 * static_cast<double>(model.embedding_parameters()) * static_cast<double>(model.sequence) / (989e12 * 0.4);
}

double adam(std::uint64_t parameters) { return 28 * static_cast<double>(parameters) / 3.35e12; }

TEST(Generator, ComputesForAsLongAsTheFormulasSay) {
  for (const Model& shape : models()) {
    Recipe recipe = recipe_of(shape.name);
    recipe.batch = 2;
    const double forward = 2 * (layers_forward(shape) + head_forward(shape));
    EXPECT_NEAR(seconds(made(recipe).workload), 3 * forward + adam(shape.parameters()), 1e-4) << shape.name;
    recipe.recompute = true;
    EXPECT_NEAR(seconds(made(recipe).workload), 3 * forward + 2 * layers_forward(shape) + adam(shape.parameters()),
                1e-4);
  }
}

TEST(Generator, KeepsTheActivationsOfTheFormulas) {
  Recipe gpt = recipe_of("gpt3-175b");
  EXPECT_EQ(bytes_of(made(gpt).workload, Class::kAct), 96ull * 34 * 2048 * 12288);
  Recipe llama = recipe_of("llama3-8b");
  llama.batch = 3;
  const std::uint64_t layer = 3ull * 8192 * (10 * 4096 + 4 * 8 * 128 + 6 * 14336);
  EXPECT_EQ(bytes_of(made(llama).workload, Class::kAct), 32 * layer);
  llama.recompute = true;
  EXPECT_EQ(bytes_of(made(llama).workload, Class::kAct), 32 * (layer + 3ull * 2 * 8192 * 4096));
}

TEST(Generator, ShardsStatesAndPutsLayersTogether) {
  Recipe recipe = recipe_of("llama3-70b");
  recipe.gpus = 8;
  recipe.recompute = true;
  const Generated generated = made(recipe);
  EXPECT_NEAR(static_cast<double>(generated.held_parameters), static_cast<double>(recipe.model.parameters()) / 8, 1000);
  std::uint64_t held = 0;
  for (const Tensor& tensor : generated.workload.tensors) {
    if (tensor.tensor_class == Class::kParam && tensor.home) held += tensor.bytes;
    if (tensor.key.ends_with("feed_forward.gathered")) {
      EXPECT_EQ(tensor.bytes, 2 * recipe.model.feed_forward_parameters());
    }
  }
  EXPECT_EQ(held, 2 * generated.held_parameters);
  EXPECT_TRUE(
      std::ranges::any_of(generated.workload.tensors, [](const Tensor& t) { return t.key.ends_with(".gathered"); }));
}

TEST(Generator, LeavesOutWhatTheTrainerKeeps) {
  Recipe recipe = recipe_of("llama3-8b");
  recipe.offload = {false, false, true, false, false};
  const Generated generated = made(recipe);
  EXPECT_EQ(bytes_of(generated.workload, Class::kOptim), 12 * recipe.model.parameters());
  for (const Tensor& tensor : generated.workload.tensors) EXPECT_EQ(tensor.tensor_class, Class::kOptim);
  recipe.offload = {true, true, true, true, false};
  const Workload all = made(recipe).workload;
  EXPECT_EQ(generated.kept_bytes,
            bytes_of(all, Class::kParam) + bytes_of(all, Class::kGrad) + bytes_of(all, Class::kAct));
}

TEST(Generator, AccumulatesGradients) {
  Recipe recipe = recipe_of("gpt2-1.5b");
  recipe.micro_batches = 3;
  const Workload workload = made(recipe).workload;
  ASSERT_EQ(workload.steps.size(), 3u);
  EXPECT_EQ(workload.steps[0].kind, StepKind::kAccum);
  EXPECT_EQ(workload.steps[1].kind, StepKind::kAccum);
  EXPECT_EQ(workload.steps[2].kind, StepKind::kTrain);
  // A gradient is overwritten in the first of them and added to in the others.
  std::vector<int> reads(3);
  for (std::size_t step = 0; step < 3; ++step) {
    for (const auto& run : workload.runs_of(step)) {
      if (run.name != "layer.7.attention.backward") continue;
      for (const TensorId id : run.read) reads[step] += workload.tensors[id].tensor_class == Class::kGrad ? 1 : 0;
    }
  }
  EXPECT_EQ(reads, (std::vector<int>{0, 1, 1}));
}

TEST(Generator, RoutesTokensToExpertsBySeed) {
  Recipe recipe = recipe_of("llama3-8b");
  recipe.gpus = 4;
  recipe.experts = 16;
  recipe.steps = 2;
  const Generated generated = made(recipe);
  EXPECT_EQ(made(recipe).workload, generated.workload);
  const auto names = [&](std::size_t step) {
    std::vector<std::string> of_runs;
    for (const auto& run : generated.workload.runs_of(step)) of_runs.push_back(run.name);
    return of_runs;
  };
  EXPECT_NE(names(0), names(1));
  const auto forward = [](const std::string& name) {
    return name.starts_with("layer.0.expert.") && name.ends_with(".forward");
  };
  const std::vector<std::string> first = names(0);
  EXPECT_EQ(std::ranges::count_if(first, forward), 3) << "of four experts of a rank, a quarter is idle";
  recipe.seed = 2;
  EXPECT_NE(made(recipe).workload.runs, generated.workload.runs);
  // A rank computes for as many tokens as it sends, two experts for each.
  const Model& shape = recipe.model;
  const auto s = static_cast<double>(shape.sequence);
  const double more = 3 * 32 * 2 * static_cast<double>(shape.feed_forward_parameters()) * s / (989e12 * 0.4);
  double computed = 0;
  for (const auto& run : generated.workload.runs_of(0)) {
    if (!run.name.starts_with("adam")) computed += std::chrono::duration<double>(run.compute).count();
  }
  EXPECT_NEAR(computed, 3 * (layers_forward(shape) + head_forward(shape)) + more, 1e-4);
}

TEST(Generator, SchedulesAPipelineOneForwardOneBackward) {
  Recipe recipe = recipe_of("gpt3-175b");
  recipe.gpus = 8;
  recipe.stages = 4;
  recipe.stage = 1;
  recipe.micro_batches = 6;
  const Workload workload = made(recipe).workload;
  ASSERT_EQ(workload.steps.size(), 1u);
  std::string order;
  for (const auto& run : workload.runs) {
    if (run.name == "layer.24.attention.forward") order += 'F';
    if (run.name == "layer.24.attention.backward") order += 'B';
    EXPECT_THAT(run.name, testing::Not(testing::StartsWith("head")));
  }
  EXPECT_EQ(order, "FFFBFBFBFBBB") << "two warm up, for the two stages behind";
  std::set<std::string> slots;
  for (const Tensor& tensor : workload.tensors) {
    if (tensor.key.starts_with("layer.24.attention.act.")) slots.insert(tensor.key);
  }
  EXPECT_EQ(slots.size(), 3u) << "as many micro-batches are in flight";
  // A step takes as long as 6 + 4 - 1 micro-batches, the waits for other stages included.
  const double micro_batch = 3 * layers_forward(recipe.model) / 4;
  EXPECT_NEAR(seconds(workload), 9 * micro_batch + adam(24 * recipe.model.layer_parameters() / 2), 1e-3);
}

TEST(Generator, TakesEveryRecipeThatItDoesNotRefuse) {
  for (const std::uint64_t stages : {1u, 2u, 4u}) {
    for (const bool recompute : {false, true}) {
      for (const std::uint64_t experts : {0u, 8u}) {
        for (const unsigned offload : {1u, 2u, 4u, 8u, 6u, 15u}) {
          Recipe recipe = recipe_of("gpt2-1.5b");
          recipe.gpus = 4;
          recipe.stages = stages;
          recipe.stage = stages - 1;
          recipe.micro_batches = 3;
          recipe.recompute = recompute;
          recipe.experts = experts;
          recipe.optimizer_place = offload % 2 == 0 ? Place::kHost : Place::kHbm;
          for (unsigned index = 0; index < 4; ++index) recipe.offload[index] = (offload >> index & 1) != 0;
          made(recipe);
        }
      }
    }
  }
}

TEST(Generator, RefusesWhatCannotBe) {
  const auto error = [](auto change) {
    Recipe recipe = recipe_of("gpt2-1.5b");
    change(recipe);
    const Result<Generated> generated = generate(recipe);
    EXPECT_FALSE(generated);
    return generated ? "" : generated.error().message;
  };
  EXPECT_THAT(error([](Recipe& r) { r.gpus = 0; }), HasSubstr("from 1 to"));
  EXPECT_THAT(error([](Recipe& r) { r.batch = 1 << 21; }), HasSubstr("from 1 to"));
  EXPECT_THAT(error([](Recipe& r) { r.stages = 3, r.gpus = 4; }), HasSubstr("cannot be 3 stages"));
  EXPECT_THAT(error([](Recipe& r) { r.stages = 64, r.gpus = 64; }), HasSubstr("cannot be 64 stages"));
  EXPECT_THAT(error([](Recipe& r) { r.stages = 2, r.gpus = 2, r.stage = 2; }), HasSubstr("the last one is 1"));
  EXPECT_THAT(error([](Recipe& r) { r.experts = 3, r.gpus = 2; }), HasSubstr("cannot be spread over 2"));
  EXPECT_THAT(error([](Recipe& r) { r.experts = 2, r.experts_active = 3; }), HasSubstr("3 cannot be active"));
  EXPECT_THAT(error([](Recipe& r) { r.experts_idle = 1; }), HasSubstr("idle"));
  EXPECT_THAT(error([](Recipe& r) { r.mfu = 0; }), HasSubstr("peak"));
  EXPECT_THAT(error([](Recipe& r) { r.mfu = NAN; }), HasSubstr("peak"));
  EXPECT_THAT(error([](Recipe& r) { r.grad_bytes = 3; }), HasSubstr("2 or 4"));
  EXPECT_THAT(error([](Recipe& r) { r.offload = {}; }), HasSubstr("no class"));
  EXPECT_THAT(error([](Recipe& r) { r.model = *model("1t"), r.batch = 1 << 20; }), HasSubstr("2^53"));
}

}  // namespace
}  // namespace terrace::workload
