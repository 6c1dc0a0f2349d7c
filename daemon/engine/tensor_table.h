// SPDX-License-Identifier: Apache-2.0
// A session's tensors by slot. It grows by a block at a time: records stay where they are, none is copied for another
// one, and what is not in use is less than a block.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <ranges>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "engine/tensor.h"

namespace terrace::engine {

class TensorTable {
 public:
  std::size_t size() const { return size_; }
  Tensor& operator[](std::size_t at) { return (*blocks_[at / kBlock])[at % kBlock]; }
  const Tensor& operator[](std::size_t at) const { return (*blocks_[at / kBlock])[at % kBlock]; }

  // A free slot more, at the end.
  Slot add() {
    if (size_ % kBlock == 0) blocks_.push_back(std::make_unique<Block>());
    return Slot{static_cast<std::uint32_t>(size_++)};
  }

  // In the order of slots.
  auto all() const {
    return std::views::iota(std::size_t{0}, size_) |
           std::views::transform([this](std::size_t at) -> const Tensor& { return (*this)[at]; });
  }

 private:
  static constexpr std::size_t kBlock = 64;
  using Block = std::array<Tensor, kBlock>;

  std::vector<std::unique_ptr<Block>> blocks_;
  std::size_t size_ = 0;
};

}  // namespace terrace::engine
