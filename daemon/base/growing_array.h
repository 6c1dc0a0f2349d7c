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

namespace terrace {

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
  T& operator[](std::size_t at) {
    const Place place = place_of(at);
    return blocks_[place.block][place.at];
  }
  const T& operator[](std::size_t at) const {
    const Place place = place_of(at);
    return blocks_[place.block][place.at];
  }

  // One more, as T{} is.
  T& add() {
    const Place place = place_of(size_);
    TERRACE_CHECK(place.block < kBlocks);
    T*& block = blocks_[place.block];
    if (block == nullptr) block = std::allocator<T>().allocate(kFirst << place.block);
    T& added = *std::construct_at(block + place.at);
    ++size_;
    return added;
  }

 private:
  static constexpr std::size_t kFirstBits = 6;
  static constexpr std::size_t kFirst = std::size_t{1} << kFirstBits;  // elements of the first block
  static constexpr std::size_t kBlocks = 26;                           // more than there are slots

  struct Place {
    std::size_t block;
    std::size_t at;  // in the block
  };
  // Counted from kFirst on, the highest bit of an element's number is its block's, and the others are its place there.
  static Place place_of(std::size_t at) {
    const std::size_t counted = at + kFirst;
    const auto highest = static_cast<std::size_t>(std::bit_width(counted) - 1);
    return {highest - kFirstBits, counted ^ (std::size_t{1} << highest)};
  }

  std::array<T*, kBlocks> blocks_{};
  std::size_t size_ = 0;
};

}  // namespace terrace
