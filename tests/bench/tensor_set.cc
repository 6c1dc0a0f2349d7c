// SPDX-License-Identifier: Apache-2.0
#include "bench/tensor_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <span>

#include "bench/contents.h"

namespace terrace::bench {
namespace {

// Leased at once; few enough for any session's guarantee here.
constexpr std::uint64_t kLeasedBytesMax = 64ull << 20;

}  // namespace

Result<TensorSet> TensorSet::make(Client& client, const SetShape& shape) {
  TensorSet set(client, shape);
  std::vector<TensorSpec> specs;
  for (std::size_t index = 0; index < shape.count; ++index)
    specs.push_back({.name = fmt::format("{}.{}", shape.name, index), .bytes = shape.bytes});
  auto tensors = client.create(specs);
  if (!tensors) return std::unexpected(tensors.error());
  set.tensors_ = std::move(*tensors);
  if (const auto written = set.rewrite(); !written) return std::unexpected(written.error());
  return set;
}

Result<void> TensorSet::rewrite() {
  ++version_;
  const std::size_t group = std::max<std::size_t>(1, kLeasedBytesMax / shape_.bytes);
  for (std::size_t first = 0; first < tensors_.size(); first += group) {
    const auto some = std::span(tensors_).subspan(first, std::min(group, tensors_.size() - first));
    auto leases = client_->acquire(some, {.mode = Mode::kOverwrite});
    if (!leases) return std::unexpected(leases.error());
    for (std::size_t index = 0; index < some.size(); ++index)
      fill((*leases)[index].writable_bytes(), first + index, version_);
  }
  return {};
}

Result<void> TensorSet::check(Place place) const {
  const std::size_t group = std::max<std::size_t>(1, kLeasedBytesMax / shape_.bytes);
  for (std::size_t first = 0; first < tensors_.size(); first += group) {
    const auto some = std::span(tensors_).subspan(first, std::min(group, tensors_.size() - first));
    const auto leases = client_->acquire(some, {.place = place});
    if (!leases) return std::unexpected(leases.error());
    for (std::size_t index = 0; index < some.size(); ++index)
      if (const auto right = bench::check((*leases)[index].bytes(), first + index, version_); !right) return right;
  }
  return {};
}

Result<void> TensorSet::destroy() { return client_->destroy(tensors_); }

std::vector<Tensor> shuffled(std::vector<Tensor> tensors, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::ranges::shuffle(tensors, random);
  return tensors;
}

}  // namespace terrace::bench
