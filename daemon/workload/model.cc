// SPDX-License-Identifier: Apache-2.0
#include "workload/model.h"

#include <algorithm>
#include <array>

namespace terrace::workload {
namespace {

// L, h, f, s, a, kv, V, tied, gated.
const std::array kModels = {
    Model{"gpt2-1.5b", 48, 1600, 6400, 1024, 25, 25, 50257, true, false},
    Model{"llama3-8b", 32, 4096, 14336, 8192, 32, 8, 128256, false, true},
    Model{"llama3-70b", 80, 8192, 28672, 8192, 64, 8, 128256, false, true},
    Model{"gpt3-175b", 96, 12288, 49152, 2048, 96, 96, 50257, true, false},
    Model{"1t", 128, 25600, 102400, 2048, 160, 160, 51200, true, false},
};

double real(std::uint64_t number) { return static_cast<double>(number); }

}  // namespace

double Model::attention_flop() const {
  return 2 * real(attention_parameters()) * real(sequence) + 2 * real(sequence) * real(sequence) * real(hidden);
}

double Model::feed_forward_flop() const { return 2 * real(feed_forward_parameters()) * real(sequence); }

double Model::head_flop() const { return 2 * real(embedding_parameters()) * real(sequence); }

// Ungated: 11 s h of attention and 19 s h of the feed-forward layer, and 2 s h of the norm before each. Gated: the
// inputs of norm, projections and output, queries, keys and values; then the input of the norm, and three of the
// feed-forward layer's width.
std::uint64_t Model::attention_activation_bytes() const {
  if (!gated) return 13 * sequence * hidden;
  return sequence * (8 * hidden + 4 * kv_heads * (hidden / heads));
}

std::uint64_t Model::feed_forward_activation_bytes() const {
  if (!gated) return 21 * sequence * hidden;
  return sequence * (2 * hidden + 6 * feed_forward);
}

std::span<const Model> models() { return kModels; }

std::optional<Model> model(std::string_view name) {
  const auto found = std::ranges::find(kModels, name, &Model::name);
  if (found == kModels.end()) return std::nullopt;
  return *found;
}

}  // namespace terrace::workload
