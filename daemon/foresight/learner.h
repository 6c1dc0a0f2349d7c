// SPDX-License-Identifier: Apache-2.0
// Learns the steps of one session from what the engine saw of it, and plans the next one. Deterministic; not
// thread-safe: whoever drives it may do so on any one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "foresight/observation.h"
#include "foresight/plan.h"
#include "foresight/planner.h"
#include "foresight/template.h"

namespace terrace::foresight {

// How sure the learner is.
struct Confidence {
  std::uint64_t steps = 0;   // seen to their end
  std::uint32_t kind = 0;    // of the last one that ended
  std::uint64_t number = 0;  // version of its template
  Match match;               // of the last step with what was expected of it
};

class Learner {
 public:
  explicit Learner(Machine machine) : machine_(std::move(machine)) {}

  // So many sessions use the machine alike, and so many of them each of its devices (in the order of the machine's):
  // plans are made with a part of its tiers and links.
  void share(std::size_t sessions, std::vector<std::size_t> by_device);
  // Whether the session was ever seen to use a tensor there.
  bool uses_place(std::uint32_t place) const { return std::ranges::find(places_, place) != places_.end(); }
  // How many uses it remembers: what its memory grows with.
  std::size_t known_uses() const;
  // All that it learned.
  void forget();

  // A plan, of the step that begins, whenever one begins whose kind is known.
  std::optional<Plan> observe(const Observation& seen);
  // Something was not seen: of the step that is under way nothing is learned.
  void missed();
  const Confidence& confidence() const { return confidence_; }

 private:
  static constexpr std::size_t kHistoryMax = 256;  // kinds of former steps

  void used(const Observation& seen);
  std::optional<Plan> step(const Observation& seen);
  void put_sets_in_order();
  std::uint32_t kind_after(const std::vector<std::uint32_t>& kinds) const;

  Machine part() const;

  Machine machine_;
  std::size_t sessions_ = 1;
  std::vector<std::size_t> by_device_;
  std::vector<std::uint32_t> places_;            // that it uses
  std::map<std::uint32_t, Template> templates_;  // by kind
  std::vector<std::uint32_t> history_;           // kinds of steps, the one that is under way last
  bool began_ = false;
  Time step_began_{};
  Time waited_until_{};
  Duration waited_{};  // in this step
  std::vector<TemplateUse> uses_;
  std::vector<std::uint32_t> last_use_;  // by slot, in `uses_`
  Confidence confidence_;
};

// Each of the learners plans with its part of what it uses of the machine: a rank with a GPU of its own has all of
// that.
void share(const Machine& machine, std::span<Learner* const> learners);

}  // namespace terrace::foresight
