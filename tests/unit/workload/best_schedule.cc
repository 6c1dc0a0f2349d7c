// SPDX-License-Identifier: Apache-2.0
#include "unit/workload/best_schedule.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/check.h"

namespace terrace::workload {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Of a tensor's copy in HBM. Where it is absent, the host has the bytes, if there are any.
enum class Copy : std::uint8_t { kAbsent, kClean, kDirty };

// All copies in one number, a digit each.
using State = std::size_t;

bool has(const std::vector<TensorId>& ids, TensorId id) { return std::ranges::find(ids, id) != ids.end(); }

class Search {
 public:
  Search(const Workload& workload, std::uint64_t hbm_bytes, Direction direction)
      : workload_(workload), hbm_bytes_(hbm_bytes), direction_(direction) {
    for (std::size_t id = 0; id < workload.tensors.size(); ++id) states_ *= 3;
  }

  // The least mean cost of a cycle of repetitions (Karp, Discrete Mathematics 23, 1978).
  double best() {
    std::vector<std::vector<double>> repetition(states_);
    for (State from = 0; from < states_; ++from) repetition[from] = costs_from(from);
    std::vector<std::vector<double>> least(states_ + 1, std::vector<double>(states_, kNever));
    std::ranges::fill(least[0], 0.0);
    for (std::size_t length = 1; length <= states_; ++length) {
      for (State from = 0; from < states_; ++from) {
        for (State to = 0; to < states_; ++to) {
          least[length][to] = std::min(least[length][to], least[length - 1][from] + repetition[from][to]);
        }
      }
    }
    double best = kNever;
    for (State state = 0; state < states_; ++state) {
      if (least[states_][state] == kNever) continue;
      double worst = -kNever;
      for (std::size_t length = 0; length < states_; ++length) {
        if (least[length][state] == kNever) continue;
        worst = std::max(worst, (least[states_][state] - least[length][state]) / static_cast<double>(states_ - length));
      }
      best = std::min(best, worst);
    }
    return best;
  }

 private:
  // What it costs to be in each state after a repetition that begins in `from`.
  std::vector<double> costs_from(State from) {
    std::vector<double> costs(states_, kNever);
    costs[from] = 0;
    for (std::size_t run = 0; run < workload_.runs.size(); ++run) {
      std::vector<double> after(states_, kNever);
      for (State state = 0; state < states_; ++state) {
        if (costs[state] != kNever) advance(run, 0, 1, state, hbm_bytes_, costs[state], 0, after);
      }
      costs = std::move(after);
    }
    return costs;
  }

  // Everything that can be done with tensor `id` and those after it at `run`; `room` is what the ones before it leave.
  void advance(std::size_t run, TensorId id, State digit, State state, std::uint64_t room, double cost, State reached,
               std::vector<double>& after) const {
    if (id == workload_.tensors.size()) {
      after[reached] = std::min(after[reached], cost);
      return;
    }
    const auto go_on = [&](Copy copy, std::uint64_t taken, std::uint64_t in, std::uint64_t out) {
      if (taken > room) return;
      if (has(workload_.runs[run].free, id)) copy = Copy::kAbsent;
      const auto moved = static_cast<double>(direction_ == Direction::kIn ? in : out);
      advance(run, id + 1, digit * 3, state, room - taken, cost + moved, reached + digit * static_cast<State>(copy),
              after);
    };
    const Run& at = workload_.runs[run];
    const std::uint64_t bytes = workload_.tensors[id].bytes;
    const bool read = has(at.read, id);
    const bool write = has(at.write, id);
    auto copy = static_cast<Copy>(state / digit % 3);
    if (at.place == Place::kHbm && (read || write)) {
      const std::uint64_t in = read && copy == Copy::kAbsent ? bytes : 0;
      if (read && copy == Copy::kAbsent) copy = Copy::kClean;
      return go_on(write ? Copy::kDirty : copy, bytes, in, 0);
    }
    if (write) return go_on(Copy::kAbsent, 0, 0, read && copy == Copy::kDirty ? bytes : 0);
    if (read && copy == Copy::kDirty) {
      go_on(Copy::kClean, bytes, 0, bytes);
      return go_on(Copy::kAbsent, 0, 0, bytes);
    }
    if (copy != Copy::kAbsent) go_on(copy, bytes, 0, 0);
    go_on(Copy::kAbsent, 0, 0, copy == Copy::kDirty && needed(id, run) ? bytes : 0);
  }

  // Whether the content of `id` is read from `run` on.
  bool needed(TensorId id, std::size_t run) const {
    for (std::size_t ahead = 0; ahead <= workload_.runs.size(); ++ahead) {
      const Run& at = workload_.runs[(run + ahead) % workload_.runs.size()];
      if (has(at.read, id)) return true;
      if (has(at.write, id) || has(at.free, id)) return false;
    }
    return false;
  }

  const Workload& workload_;
  std::uint64_t hbm_bytes_;
  Direction direction_;
  State states_ = 1;
};

}  // namespace

double best_bytes(const Workload& workload, std::uint64_t hbm_bytes, Direction direction) {
  TERRACE_CHECK(workload.tensors.size() <= 5);
  return Search(workload, hbm_bytes, direction).best();
}

}  // namespace terrace::workload
