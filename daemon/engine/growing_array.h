// SPDX-License-Identifier: Apache-2.0
// An array that grows at its end, in blocks that double: elements stay where they are, and none is copied for another
// one. A dozen pointers lead to a million elements, so that they are at hand when an element is not.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <memory>

#include "base/check.h"

namespace terrace::engine {

// Pages of a block count once elements were made there. Not thread-safe.
template <typename T>
class GrowingArray {
 public:
  GrowingArray() = default;
  GrowingArray(const GrowingArray&) = delete;
  GrowingArray& operator=(const GrowingArray&) = delete;
  ~GrowingArray() {
    std::size_t left = size_;
    std::size_t block_size = kFirst;
    for (T* const block : blocks_) {
      if (block == nullptr) break;
      std::destroy_n(block, std::min(left, block_size));
      std::allocator<T>().deallocate(block, block_size);
      left -= std::min(left, block_size);
      block_size *= 2;
    }
  }

  std::size_t size() const { return size_; }
  // Of an element that there is.
  T& operator[](std::size_t at) { return blocks_[block_of(at)][place_of(at)]; }
  const T& operator[](std::size_t at) const { return blocks_[block_of(at)][place_of(at)]; }

  // One more, as T{} is.
  T& add() {
    TERRACE_CHECK(block_of(size_) < kBlocks);
    T*& block = blocks_[block_of(size_)];
    if (block == nullptr) block = std::allocator<T>().allocate(kFirst << block_of(size_));
    return *std::construct_at(block + place_of(size_++));
  }

 private:
  static constexpr std::size_t kFirst = 64;   // elements of the first block
  static constexpr std::size_t kBlocks = 26;  // more than there are slots

  static std::size_t block_of(std::size_t at) { return static_cast<std::size_t>(std::bit_width(at / kFirst + 1)) - 1; }
  static std::size_t place_of(std::size_t at) { return at - kFirst * (std::bit_floor(at / kFirst + 1) - 1); }

  std::array<T*, kBlocks> blocks_{};
  std::size_t size_ = 0;
};

}  // namespace terrace::engine
