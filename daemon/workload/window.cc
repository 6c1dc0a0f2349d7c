// SPDX-License-Identifier: Apache-2.0
#include "workload/window.h"

#include <algorithm>
#include <limits>

namespace terrace::workload {
namespace {

// A row of numbers: adding to a range of them and finding the largest of a range take O(log n).
class Row {
 public:
  explicit Row(const std::vector<double>& values) : size_(values.size()), largest_(4 * size_), added_(4 * size_, 0.0) {
    build(1, 0, size_, values);
  }
  void add(std::size_t begin, std::size_t end, double value) { add(1, 0, size_, begin, end, value); }
  double largest(std::size_t begin, std::size_t end) const { return largest(1, 0, size_, begin, end); }

 private:
  static constexpr double kNone = -std::numeric_limits<double>::infinity();

  void build(std::size_t node, std::size_t low, std::size_t high, const std::vector<double>& values) {
    if (high - low == 1) {
      largest_[node] = values[low];
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
      largest_[node] += value;
      added_[node] += value;
      return;
    }
    const std::size_t middle = (low + high) / 2;
    add(2 * node, low, middle, begin, end, value);
    add(2 * node + 1, middle, high, begin, end, value);
    largest_[node] = std::max(largest_[2 * node], largest_[2 * node + 1]) + added_[node];
  }
  double largest(std::size_t node, std::size_t low, std::size_t high, std::size_t begin, std::size_t end) const {
    if (end <= low || high <= begin) return kNone;
    if (begin <= low && high <= end) return largest_[node];
    const std::size_t middle = (low + high) / 2;
    return std::max(largest(2 * node, low, middle, begin, end), largest(2 * node + 1, middle, high, begin, end)) +
           added_[node];
  }

  std::size_t size_;
  std::vector<double> largest_;
  std::vector<double> added_;
};

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

// Two repetitions side by side, so that a window goes around the end as any other. For each last run of a window, in
// order, the row holds for each first run: the bytes born since then and still needed, and the bytes that could have
// left in the time computed before it.
Duration longest_window(std::span<const Run> runs, const std::vector<Version>& born, std::uint64_t capacity_bytes,
                        std::uint64_t out_bytes_per_s) {
  const std::size_t count = runs.size();
  const auto bandwidth = static_cast<double>(out_bytes_per_s);
  std::vector<double> before(2 * count + 1);
  for (std::size_t run = 0; run < 2 * count; ++run)
    before[run + 1] = before[run] + bandwidth * seconds(runs[run % count].compute);
  Row row(std::vector<double>(before.begin(), before.end() - 1));

  std::vector<std::vector<std::pair<std::size_t, double>>> dead(2 * count + count +
                                                                1);  // by the run that reads it last: birth, bytes
  auto next = born.begin();
  double most = 0;  // bytes over what can leave while it is computed
  for (std::size_t run = 0; run < 2 * count; ++run) {
    if (run == count) next = born.begin();
    for (; next != born.end() && next->born == run % count; ++next) {
      row.add(0, run + 1, static_cast<double>(next->bytes));
      dead[run + next->runs].emplace_back(run, static_cast<double>(next->bytes));
    }
    for (const auto& [birth, bytes] : dead[run]) row.add(0, birth + 1, -bytes);
    if (run + 1 < count) continue;
    const double owed = row.largest(run + 1 - count, run + 1) - before[run + 1] - static_cast<double>(capacity_bytes);
    most = std::max(most, owed);
  }
  if (most <= 0) return Duration{};
  return compute_time(runs) + Duration(static_cast<std::int64_t>(most / bandwidth * 1e9));
}

}  // namespace terrace::workload
