// SPDX-License-Identifier: Apache-2.0
#include "arena.h"

#include <algorithm>
#include <bit>

#include "shm/layout.h"

namespace terrace::client {
namespace {

unsigned order_of(std::uint64_t bytes) {
  return static_cast<unsigned>(std::countr_zero(bytes) - std::countr_zero(std::uint64_t{shm::kBlockBytesMin}));
}

}  // namespace

Arena::Arena(std::uint64_t bytes) : bytes_(bytes), free_bytes_(bytes) { free_[order_of(bytes)].insert(0); }

std::optional<Arena::Block> Arena::take(std::uint64_t bytes) {
  if (bytes > bytes_) return std::nullopt;
  const std::uint64_t wanted = std::bit_ceil(std::max<std::uint64_t>(bytes, shm::kBlockBytesMin));
  for (unsigned order = order_of(wanted); order <= order_of(bytes_); ++order) {
    if (free_[order].empty()) continue;
    const std::uint64_t offset = *free_[order].begin();
    free_[order].erase(free_[order].begin());
    while (order > order_of(wanted)) {  // the upper half stays free
      --order;
      free_[order].insert(offset + (std::uint64_t{shm::kBlockBytesMin} << order));
    }
    free_bytes_ -= wanted;
    return Block{.offset = offset, .bytes = wanted};
  }
  return std::nullopt;
}

void Arena::give_back(const Block& block) {
  free_bytes_ += block.bytes;
  Block whole = block;
  while (whole.bytes < bytes_ && free_[order_of(whole.bytes)].erase(whole.offset ^ whole.bytes) != 0) {
    whole.offset &= ~whole.bytes;
    whole.bytes *= 2;
  }
  free_[order_of(whole.bytes)].insert(whole.offset);
}

}  // namespace terrace::client
