// SPDX-License-Identifier: Apache-2.0
// The shapes of transformers, and what follows from them: parameters, floating-point operations and activations. The
// formulas are those of Megatron-LM (Narayanan et al., SC 2021; Korthikanti et al., MLSys 2023: activations) with
// grouped queries and gated feed-forward layers as in Llama 3 (arXiv 2407.21783). Norms and biases are left away.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace terrace::workload {

struct Model {
  std::string name;
  std::uint64_t layers = 0;
  std::uint64_t hidden = 0;        // h
  std::uint64_t feed_forward = 0;  // f
  std::uint64_t sequence = 0;      // s, in tokens
  std::uint64_t heads = 0;         // a
  std::uint64_t kv_heads = 0;      // kv
  std::uint64_t vocabulary = 0;    // V
  bool tied = false;               // embedding and head are one matrix
  bool gated = false;              // the feed-forward layer has three matrices, and not two

  std::uint64_t attention_parameters() const { return hidden * hidden * 2 + hidden * hidden * 2 * kv_heads / heads; }
  std::uint64_t feed_forward_parameters() const { return (gated ? 3 : 2) * hidden * feed_forward; }
  std::uint64_t layer_parameters() const { return attention_parameters() + feed_forward_parameters(); }
  std::uint64_t embedding_parameters() const { return vocabulary * hidden; }
  std::uint64_t parameters() const { return layers * layer_parameters() + embedding_parameters() * (tied ? 1 : 2); }

  // Operations of the forward pass for one sequence, causal attention; backward takes twice as many.
  double attention_flop() const;
  double feed_forward_flop() const;
  double head_flop() const;

  // What the forward pass of one layer keeps for the backward pass, for one sequence in bf16, with attention that keeps
  // no scores (Dao et al., NeurIPS 2022): together 34 s h, or s (10 h + 4 kv d + 6 f) where it is gated, d = h / a.
  std::uint64_t attention_activation_bytes() const;
  std::uint64_t feed_forward_activation_bytes() const;
  // What is kept of a layer that is computed again for its backward pass: its input.
  std::uint64_t checkpoint_bytes() const { return 2 * sequence * hidden; }
};

// "gpt2-1.5b", "llama3-8b", "llama3-70b", "gpt3-175b" and "1t" (the largest of Megatron-LM's).
std::span<const Model> models();
// The one of that name.
std::optional<Model> model(std::string_view name);

}  // namespace terrace::workload
