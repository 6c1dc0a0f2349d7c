// SPDX-License-Identifier: Apache-2.0
#include "foresight/alignment.h"

#include <algorithm>

namespace terrace::foresight {
namespace {

using Keys = std::span<const std::uint64_t>;

// The names are the paper's: D edits, diagonal k = x - y, and V[k], the farthest x on it.
class Block {
 public:
  // `last`: the path ends at the end of both; else wherever one of them ends.
  Block(Keys first, Keys second, bool last)
      : first_(first),
        second_(second),
        last_(last),
        zero_(static_cast<std::int64_t>(first.size() + second.size()) + 1) {
    farthest_.assign(static_cast<std::size_t>(2 * zero_ + 1), 0);
  }

  // The edits along the shortest path, in order.
  std::vector<Edit> edits() {
    for (std::int64_t d = 0;; ++d) {
      trace_.emplace_back(farthest_.begin() + zero_ - d - 1, farthest_.begin() + zero_ + d + 2);
      for (std::int64_t k = -d; k <= d; k += 2)
        if (extend(d, k)) return walk_back(d, k);
    }
  }

 private:
  std::int64_t width() const { return static_cast<std::int64_t>(first_.size()); }
  std::int64_t height() const { return static_cast<std::int64_t>(second_.size()); }
  std::int64_t& at(std::int64_t k) { return farthest_[static_cast<std::size_t>(zero_ + k)]; }

  static bool comes_down(std::int64_t d, std::int64_t k, std::int64_t left, std::int64_t right) {
    return k == -d || (k != d && left < right);
  }

  // True: the end is reached.
  bool extend(std::int64_t d, std::int64_t k) {
    std::int64_t x = comes_down(d, k, at(k - 1), at(k + 1)) ? at(k + 1) : at(k - 1) + 1;
    while (x < width() && x - k < height() &&
           first_[static_cast<std::size_t>(x)] == second_[static_cast<std::size_t>(x - k)])
      ++x;
    at(k) = x;
    return last_ ? x == width() && x - k == height() : x >= width() || x - k >= height();
  }

  std::vector<Edit> walk_back(std::int64_t d, std::int64_t k) {
    std::vector<Edit> edits;
    std::int64_t x = at(k);
    for (; d > 0; --d) {
      const auto& before = trace_[static_cast<std::size_t>(d)];  // diagonals -d-1 to d+1, of d-1 edits
      const auto was = [&](std::int64_t diagonal) { return before[static_cast<std::size_t>(diagonal + d + 1)]; };
      const bool down = comes_down(d, k, was(k - 1), was(k + 1));
      const std::int64_t from = down ? was(k + 1) : was(k - 1) + 1;
      edits.insert(edits.end(), static_cast<std::size_t>(x - from), Edit::kBoth);
      edits.push_back(down ? Edit::kSecond : Edit::kFirst);
      x = down ? from : from - 1;
      k += down ? 1 : -1;
    }
    edits.insert(edits.end(), static_cast<std::size_t>(x), Edit::kBoth);
    std::ranges::reverse(edits);
    return edits;
  }

  Keys first_;
  Keys second_;
  bool last_;
  std::int64_t zero_;
  std::vector<std::int64_t> farthest_;
  std::vector<std::vector<std::int64_t>> trace_;
};

}  // namespace

std::vector<Edit> align(Keys first, Keys second) {
  std::vector<Edit> edits;
  edits.reserve(std::max(first.size(), second.size()));
  std::size_t x = 0;
  std::size_t y = 0;
  const auto take = [&](Edit edit) {
    edits.push_back(edit);
    x += edit != Edit::kSecond ? 1 : 0;
    y += edit != Edit::kFirst ? 1 : 0;
  };
  while (x < first.size() && y < second.size()) {
    if (first[x] == second[y]) {
      take(Edit::kBoth);
      continue;
    }
    const Keys a = first.subspan(x, std::min(kAlignedMax, first.size() - x));
    const Keys b = second.subspan(y, std::min(kAlignedMax, second.size() - y));
    const bool last = x + a.size() == first.size() && y + b.size() == second.size();
    // Towards the end of a block the path is a guess: what comes after may say otherwise.
    const std::size_t x_max = last ? first.size() : x + kAlignedMax / 2;
    const std::size_t y_max = last ? second.size() : y + kAlignedMax / 2;
    for (const Edit edit : Block(a, b, last).edits()) {
      take(edit);
      if (x >= x_max || y >= y_max) break;
    }
  }
  while (x < first.size()) take(Edit::kFirst);
  while (y < second.size()) take(Edit::kSecond);
  return edits;
}

}  // namespace terrace::foresight
