// SPDX-License-Identifier: Apache-2.0
#include "tier/extent_allocator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/bytes.h"

namespace terrace::tier {

void ExtentAllocator::insert(Extent extent) {
  if (!offset_node_) {
    by_offset_.emplace(extent.offset, extent.bytes);
    by_bytes_.emplace(extent.bytes, extent.offset);
    return;
  }
  offset_node_.key() = extent.offset;
  offset_node_.mapped() = extent.bytes;
  bytes_node_.value() = {extent.bytes, extent.offset};
  by_offset_.insert(std::move(offset_node_));
  by_bytes_.insert(std::move(bytes_node_));
}

void ExtentAllocator::erase(ByOffset::iterator at) {
  bytes_node_ = by_bytes_.extract({at->second, at->first});
  offset_node_ = by_offset_.extract(at);
}

void ExtentAllocator::extend(std::uint64_t bytes) {
  TERRACE_CHECK(bytes % unit_ == 0);
  if (bytes == 0) return;
  const std::uint64_t end = capacity_;
  capacity_ += bytes;
  free({end, bytes});
}

bool ExtentAllocator::shrink(std::uint64_t bytes) {
  TERRACE_CHECK(bytes % unit_ == 0 && bytes <= capacity_);
  if (bytes == 0) return true;
  const std::uint64_t tail = free_tail_offset();
  const std::uint64_t end = capacity_ - bytes;
  if (tail > end) return false;
  erase(by_offset_.find(tail));
  if (tail < end) insert({tail, end - tail});
  capacity_ = end;
  free_ -= bytes;
  return true;
}

std::optional<Extent> ExtentAllocator::allocate(std::uint64_t bytes) {
  TERRACE_CHECK(bytes > 0);
  if (bytes > free_) return std::nullopt;
  const std::uint64_t size = align_up(bytes, unit_);
  const auto best = by_bytes_.lower_bound({size, 0});
  if (best == by_bytes_.end()) return std::nullopt;
  const Extent found{best->second, best->first};
  erase(by_offset_.find(found.offset));
  if (found.bytes > size) insert({found.offset + size, found.bytes - size});
  free_ -= size;
  return Extent{found.offset, size};
}

std::optional<Pieces> ExtentAllocator::allocate_pieces(std::uint64_t bytes) {
  TERRACE_CHECK(bytes > 0);
  if (bytes > free_) return std::nullopt;
  std::uint64_t remaining = align_up(bytes, unit_);
  Pieces pieces;
  while (remaining > 0 && pieces.size() < kPiecesMax && !by_bytes_.empty()) {
    const auto piece = allocate(std::min(remaining, largest_free_bytes()));
    pieces.push(*piece);
    remaining -= piece->bytes;
  }
  if (remaining == 0) return pieces;
  for (const Extent& piece : pieces.span()) free(piece);
  return std::nullopt;
}

void ExtentAllocator::free(Extent extent) {
  TERRACE_CHECK(extent.bytes > 0 && extent.bytes % unit_ == 0 && extent.end() <= capacity_);
  free_ += extent.bytes;
  auto next = by_offset_.lower_bound(extent.offset);
  TERRACE_CHECK(next == by_offset_.end() || next->first >= extent.end());
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    const std::uint64_t previous_end = previous->first + previous->second;
    TERRACE_CHECK(previous_end <= extent.offset);
    if (previous_end == extent.offset) {
      extent = {previous->first, previous->second + extent.bytes};
      erase(previous);
    }
  }
  if (next != by_offset_.end() && next->first == extent.end()) {
    extent.bytes += next->second;
    erase(next);
  }
  insert(extent);
}

bool ExtentAllocator::is_free(Extent extent) const {
  if (extent.bytes == 0 || extent.bytes % unit_ != 0 || extent.offset % unit_ != 0) return false;
  if (extent.bytes > capacity_ || extent.offset > capacity_ - extent.bytes) return false;
  const auto behind = by_offset_.upper_bound(extent.offset);
  if (behind == by_offset_.begin()) return false;
  const auto around = std::prev(behind);
  return extent.end() <= around->first + around->second;
}

void ExtentAllocator::take(Extent extent) {
  auto at = by_offset_.upper_bound(extent.offset);
  TERRACE_CHECK(extent.bytes > 0 && extent.bytes % unit_ == 0 && at != by_offset_.begin());
  --at;
  const Extent around{at->first, at->second};
  TERRACE_CHECK(around.offset <= extent.offset && extent.end() <= around.end());
  erase(at);
  if (around.offset < extent.offset) insert({around.offset, extent.offset - around.offset});
  if (extent.end() < around.end()) insert({extent.end(), around.end() - extent.end()});
  free_ -= extent.bytes;
}

void ExtentAllocator::retire(Extent extent) {
  take(extent);
  retired_ += extent.bytes;
}

void ExtentAllocator::take_back(Extent extent) {
  TERRACE_CHECK(extent.bytes <= retired_);
  retired_ -= extent.bytes;
  free(extent);
}

std::vector<Extent> ExtentAllocator::free_within(Extent range) const {
  std::vector<Extent> found;
  auto at = by_offset_.upper_bound(range.offset);
  if (at != by_offset_.begin()) --at;
  for (; at != by_offset_.end() && at->first < range.end(); ++at) {
    const std::uint64_t begin = std::max(at->first, range.offset);
    const std::uint64_t end = std::min(at->first + at->second, range.end());
    if (begin < end) found.push_back({begin, end - begin});
  }
  return found;
}

std::uint64_t ExtentAllocator::largest_free_bytes() const { return by_bytes_.empty() ? 0 : by_bytes_.rbegin()->first; }

double ExtentAllocator::fragmentation() const {
  if (free_ == 0) return 0;
  return 1.0 - static_cast<double>(largest_free_bytes()) / static_cast<double>(free_);
}

std::uint64_t ExtentAllocator::free_tail_offset() const {
  if (by_offset_.empty()) return capacity_;
  const auto last = by_offset_.rbegin();
  return last->first + last->second == capacity_ ? last->first : capacity_;
}

void ExtentAllocator::check_invariants() const {
  TERRACE_CHECK(by_offset_.size() == by_bytes_.size());
  std::uint64_t sum = 0;
  std::uint64_t end = 0;
  bool first = true;
  for (const auto& [offset, bytes] : by_offset_) {
    TERRACE_CHECK(bytes > 0 && offset % unit_ == 0 && bytes % unit_ == 0);
    TERRACE_CHECK(first || offset > end);  // neighbours would have been joined
    TERRACE_CHECK(by_bytes_.contains({bytes, offset}));
    end = offset + bytes;
    sum += bytes;
    first = false;
  }
  TERRACE_CHECK(end <= capacity_ && sum == free_ && free_ + retired_ <= capacity_);
}

}  // namespace terrace::tier
