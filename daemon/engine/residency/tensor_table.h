// SPDX-License-Identifier: Apache-2.0
// A session's tensors by slot: records stay where they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ranges>

#include "base/growing_array.h"
#include "base/ids.h"
#include "engine/residency/tensor.h"

namespace terrace::engine {

class TensorTable {
 public:
  std::size_t size() const { return tensors_.size(); }
  Tensor& operator[](std::size_t at) { return tensors_[at]; }
  const Tensor& operator[](std::size_t at) const { return tensors_[at]; }

  // A free slot more, at the end.
  Slot add() {
    const Slot slot{static_cast<std::uint32_t>(tensors_.size())};
    tensors_.add();
    return slot;
  }

  // In the order of slots.
  auto all() const {
    return std::views::iota(std::size_t{0}, size()) |
           std::views::transform([this](std::size_t at) -> const Tensor& { return tensors_[at]; });
  }

 private:
  GrowingArray<Tensor> tensors_;
};

}  // namespace terrace::engine
