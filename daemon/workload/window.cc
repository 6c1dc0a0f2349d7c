// SPDX-License-Identifier: Apache-2.0
#include "workload/window.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace terrace::workload {
namespace {

// A row of numbers: adding to a range of them and finding the largest of a range take O(log n).
class Row {
 public:
  explicit Row(const std::vector<double>& values) : size_(values.size()), largest_(4 * size_), added_(4 * size_, 0.0) {
    build(1, 0, size_, values);
  }
  void add(std::size_t begin, std::size_t end, double value) { add(1, 0, size_, begin, end, value); }
  // The largest and where it is.
  using Place = std::pair<double, std::size_t>;
  Place largest(std::size_t begin, std::size_t end) const { return largest(1, 0, size_, begin, end); }

 private:
  static constexpr Place kNone{-std::numeric_limits<double>::infinity(), 0};

  void build(std::size_t node, std::size_t low, std::size_t high, const std::vector<double>& values) {
    if (high - low == 1) {
      largest_[node] = {values[low], low};
      return;
    }
    const std::size_t middle = (low + high) / 2;
    build(2 * node, low, middle, values);
    build(2 * node + 1, middle, high, values);
    largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]);
  }
  void add(std::size_t node, std::size_t low, std::size_t high, std::size_t begin, std::size_t end, double value) {
    if (end <= low || high <= begin) return;
    if (begin <= low && high <= end) {
      largest_[node].first += value;
      added_[node] += value;
      return;
    }
    const std::size_t middle = (low + high) / 2;
    add(2 * node, low, middle, begin, end, value);
    add(2 * node + 1, middle, high, begin, end, value);
    largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]);
    largest_[node].first += added_[node];
  }
  Place largest(std::size_t node, std::size_t low, std::size_t high, std::size_t begin, std::size_t end) const {
    if (end <= low || high <= begin) return kNone;
    if (begin <= low && high <= end) return largest_[node];
    const std::size_t middle = (low + high) / 2;
    Place place = std::max(largest(2 * node, low, middle, begin, end), largest(2 * node + 1, middle, high, begin, end));
    place.first += added_[node];
    return place;
  }

  std::size_t size_;
  std::vector<Place> largest_;
  std::vector<double> added_;
};

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

// Two repetitions side by side, so that a window goes around the end as any other. For each last run of a window, in
// order, the row holds for each first run: the bytes that count, and those that could have moved in the time computed
// before it.
Window longest_window(std::span<const Run> runs, const std::vector<Demand>& demands, std::uint64_t capacity_bytes,
                      std::uint64_t bytes_per_s, Direction direction) {
  const std::size_t count = runs.size();
  const auto bandwidth = static_cast<double>(bytes_per_s);
  std::vector<double> before(2 * count + 1);
  for (std::size_t run = 0; run < 2 * count; ++run)
    before[run + 1] = before[run] + bandwidth * seconds(runs[run % count].compute);
  const std::ptrdiff_t of_first = direction == Direction::kOut ? 1 : 0;  // runs at its beginning that are outside
  const std::size_t of_last = direction == Direction::kIn ? 0 : 1;
  Row row(std::vector<double>(before.begin() + of_first, before.end() - 1 + of_first));

  struct Counted {
    std::size_t first, end;  // of the windows' first runs
    double bytes;
  };
  std::vector<std::vector<Counted>> over(3 * count + 1);  // by the first run at which a window may not end any more
  auto next = demands.begin();
  double most = 0;  // bytes over what can move while it is computed
  Window longest;
  for (std::size_t run = 0; run < 2 * count; ++run) {
    if (run == count) next = demands.begin();
    for (; next != demands.end() && next->run == run % count; ++next) {
      const std::size_t first = run + 1 - std::min(run + 1, next->begins);
      const Counted counted{.first = first, .end = run + 1, .bytes = static_cast<double>(next->bytes)};
      row.add(counted.first, counted.end, counted.bytes);
      over[run + next->ends].push_back(counted);
    }
    for (const Counted& counted : over[run]) row.add(counted.first, counted.end, -counted.bytes);
    if (run + 1 < count) continue;
    const auto [bytes, first] = row.largest(run + 1 - count, run + 1);
    const double moved = bytes - before[run + of_last] - static_cast<double>(capacity_bytes);
    if (moved <= most) continue;
    most = moved;
    longest = {.step = {}, .first = first % count, .last = run % count};
  }
  if (most > 0) longest.step = compute_time(runs) + Duration(static_cast<std::int64_t>(most / bandwidth * 1e9));
  return longest;
}

}  // namespace terrace::workload
