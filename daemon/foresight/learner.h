// SPDX-License-Identifier: Apache-2.0
// Learns the steps of one session from what the engine saw of it, and plans the next one. Deterministic; not
// thread-safe: whoever drives it may do so on any one thread.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "foresight/observation.h"
#include "foresight/plan.h"
#include "foresight/planner.h"
#include "foresight/sketch.h"
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

  // The weights of all sessions that use the machine, and of those that use each of its devices (in the order of the
  // machine's), together: plans are made with a part of its tiers and links, by this one's.
  void share(double weights, std::vector<double> by_device);
  double weight() const { return weight_; }
  // As the step mark says that comes next: it counts in what it shares.
  void weigh(double weight) { weight_ = weight; }
  // Whether the session was ever seen to use a tensor there.
  bool uses_place(std::uint32_t place) const { return std::ranges::find(places_, place) != places_.end(); }
  // How many uses it remembers: what its memory grows with.
  std::size_t known_uses() const;
  // All that it learned.
  void forget();

  // A plan, of the step that begins, whenever one begins whose kind is known: seen before, or declared.
  std::optional<Plan> observe(const Observation& seen);
  // Something was not seen: of the step that is under way nothing is learned.
  void missed();
  const Confidence& confidence() const { return confidence_; }

 private:
  static constexpr std::size_t kHistoryMax = 256;  // former steps
  static constexpr Duration kLeadMax = std::chrono::seconds(1);
  static constexpr std::size_t kTurnsMax = 16;

  // Of steps that are marked as of one kind and do different things by turns, as a discriminator's and a generator's
  // do: the kind, and whose turn it is.
  struct Sort {
    std::uint32_t kind = 0;
    std::uint32_t turn = 0;
    auto operator<=>(const Sort&) const = default;
  };
  // A step's sort and the one before it: the first of several accumulating steps begins gradients, and the others add
  // to them.
  using Context = std::pair<Sort, Sort>;

  // The turns of a kind after another.
  struct Turns {
    std::size_t count = 1;
    std::uint32_t next = 0;
    std::deque<Sketch> latest;  // of its steps, the last one first
    std::optional<std::size_t> changed() const;
  };

  // What a step is going to be like, by whoever does it.
  struct Declaration {
    std::vector<TemplateUse> uses;
    std::int64_t period_ns = 0;
  };

  void used(const Observation& seen);
  void declared(const Observation& seen);
  void believe(std::uint32_t kind);
  void take_turns();
  std::optional<Plan> step(const Observation& seen);
  static void put_sets_in_order(std::vector<TemplateUse>& uses);
  static Context context_of(const std::vector<Sort>& sorts, std::size_t at);
  static Sort sort_after(const std::vector<Sort>& sorts);
  const Template* template_of(const std::vector<Sort>& sorts, std::size_t at) const;
  Template& template_to_learn();
  std::size_t steps_before() const;
  std::vector<const Template*> horizon_of(const Template& window, std::size_t& at) const;

  void adapt_lead();
  Machine part() const;

  Machine machine_;
  double weight_ = 0;  // as the last step mark had it: before the first it takes no part
  double weights_ = 1;
  std::vector<double> by_device_;
  std::vector<std::uint32_t> places_;  // that it uses
  std::map<Context, Template> templates_;
  std::map<Sort, Context> latest_;                                  // by sort: of what was learned last
  std::map<std::pair<std::uint32_t, std::uint32_t>, Turns> turns_;  // by kind, and the one before
  std::map<std::uint32_t, Declaration> declared_;                   // by kind, until a step of it begins
  std::vector<Sort> history_;                                       // of steps, the one that is under way last
  bool began_ = false;
  Time step_began_{};
  Time waited_until_{};
  Duration waited_{};                      // in this step
  std::optional<Duration> foreseen_wait_;  // likewise, by its plan; none: it has no plan
  Duration lead_{};                        // beyond the machine's, by what was late
  std::vector<TemplateUse> uses_;
  std::vector<std::uint32_t> last_use_;  // by slot, in `uses_`
  Confidence confidence_;
};

// Each of the learners plans with its part, by weight, of what it uses of the machine: a rank with a GPU of its own has
// all of that.
void share(const Machine& machine, std::span<Learner* const> learners);

}  // namespace terrace::foresight
