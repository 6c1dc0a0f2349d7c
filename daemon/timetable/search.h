// SPDX-License-Identifier: Apache-2.0
// Makes a choice of places better, by trying others. Internal to timetable.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "timetable/gaps.h"
#include "timetable/layout.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::timetable {

// Gaps of one kind, by their begin: of tensors of one class, between the same uses of them.
using Family = std::vector<GapId>;

// Simulated annealing (Kirkpatrick, Gelatt, Vecchi 1983) over where gaps rest. What counts is the period and, for less,
// how long links are busy, of which block's wear their drives. The same seed does the same.
class Search {
 public:
  Search(const workload::Workload& workload, const workload::Node& node, const Gaps& gaps, Layout& layout,
         std::uint64_t seed);

  // From `rests`, which must be possible, by `evaluations` layouts: the best that was found.
  Rests improve(const Rests& rests, std::uint64_t evaluations);

  struct Phase {
    double worse = 0;  // a choice that is worse by this share may be taken at its beginning
    double busy = 0;   // what a second costs for which the block link is busy, in seconds of the period
  };

 private:
  struct State {
    Rests rests;
    std::int64_t period_ns = 0;
    double busy_ns = 0;  // the block link both ways, and HBM's for less
    std::vector<std::int64_t> waits_ns;
    std::vector<GapId> waited_for;
  };

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  double share() { return static_cast<double>(below(1 << 20)) / (1 << 20); }
  GapId any_gap() { return live_[below(live_.size())]; }
  const Family& any_family() { return families_[below(families_.size())]; }
  Tier any_tier() { return static_cast<Tier>(below(lowest_ + 1)); }
  static double cost_ns(const State& state, const Phase& phase) {
    return static_cast<double>(state.period_ns) + phase.busy * state.busy_ns;
  }
  bool evaluate(State& state);
  void anneal(State& best, std::uint64_t evaluations, const Phase& phase);
  void change(const State& from, Rests& rests);
  void set_some(Rests& rests);
  void exchange(Rests& rests);
  void relieve(const State& from, Rests& rests);
  void trade(Rests& rests);
  void set_stretch(Rests& rests);
  void trade_bytes(Rests& rests);

  const Gaps& gaps_;
  Layout& layout_;
  std::mt19937_64 random_;
  std::vector<GapId> live_;
  std::vector<Family> families_;
  std::uint64_t lowest_ = 0;  // tier
};

}  // namespace terrace::timetable
