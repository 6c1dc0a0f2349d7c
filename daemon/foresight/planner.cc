// SPDX-License-Identifier: Apache-2.0
#include "foresight/planner.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "foresight/timing.h"

namespace terrace::foresight {
namespace {

constexpr std::uint32_t kNoTensor = UINT32_MAX;
constexpr int kRoundsMax = 3;
constexpr std::uint64_t kUnforeseenOneIn = 8;   // of a device, at most
constexpr std::uint64_t kSpareOneIn = 8;        // likewise
constexpr std::uint64_t kSmallOneIn = 100;      // of memory: no tensor takes more,
constexpr std::uint64_t kSmallSpareOneIn = 50;  // and no more is left where extents do not pack
constexpr std::int64_t kStretchOneIn = 50;      // waits of less than this part of the step do not make a new plan
constexpr std::int64_t kSameOneIn = 20;         // nor do those that differ by less than this part from a former round's

// A use within the horizon.
struct HorizonUse {
  std::uint32_t tensor = 0;
  std::uint32_t group = 0;
  std::uint32_t place = 0;
  std::uint32_t next = kNoUse;  // of the same tensor
  bool reads = false;
  bool writes = false;
  bool dies = false;
  bool give_up = false;
  bool give_up_below = false;
};

// What happens to a tensor's copy in memory, in the order of time.
struct Event {
  enum class Kind : std::uint8_t { kStale, kWritten, kNeeded, kUsed };
  std::int64_t at_ns = 0;
  std::uint32_t tensor = 0;
  Kind kind{};
  std::uint32_t use = kNoUse;  // in the horizon: the one that it is, or that it comes after or before
  std::uint64_t order() const { return static_cast<std::uint64_t>(kind); }
};

class Planner {
 public:
  Planner(const Machine& machine, const std::vector<const Template*>& templates, std::size_t window)
      : machine_(machine) {
    lay_out(templates, window);
    for (std::size_t at = uses_.size(); at-- > 0;) {
      std::uint32_t& later = last_[uses_[at].tensor];
      uses_[at].next = later;
      // The use at which it died last time was not the last one then: that one was left out.
      if (later != kNoUse && uses_[later].reads) uses_[at].dies = false;
      later = static_cast<std::uint32_t>(at);
      stays_[uses_[at].tensor] = uses_[at].reads && uses_[at].group < second_step_;
    }
  }

  Plan run() {
    for (int round = 1;; ++round) {
      waits_.assign(unwaited_.begins.size() - 1, 0);
      for (const PlannedTier& device : machine_.devices) plan_device(device);
      if (machine_.has_memory) plan_memory();
      if (round == kRoundsMax || !stretch()) break;
      for (HorizonUse& use : uses_) use.give_up = use.give_up_below = false;
      cleans_.clear();
      fetches_.clear();
      events_.clear();
    }
    plan_.period_ns = timing_.period_ns;
    emit_uses();
    sort_out();
    return std::move(plan_);
  }

 private:
  struct TimedClean {
    std::int64_t at_ns = 0;
    PlannedClean clean;
  };
  struct TimedFetch {
    std::int64_t at_ns = 0;
    PlannedFetch fetch;
  };

  void lay_out(const std::vector<const Template*>& templates, std::size_t window) {
    std::int64_t base = 0;
    std::vector<std::int64_t>& begins = unwaited_.begins;
    std::size_t most = 0;
    for (const Template* known : templates) most += known->uses.size();
    uses_.reserve(most);
    begins.reserve(most + 1);
    first_use_.reserve(most + 1);
    for (std::size_t period = 0; period < templates.size(); ++period) {
      if (period == window) {
        window_begin_ = uses_.size();
        unwaited_.window_ns = base;
        unwaited_.period_ns = templates[period]->period_ns;
        plan_.number = templates[period]->version;
        match_ = templates[period]->last_match;
      }
      bool opens = true;
      std::int64_t opened_ns = 0;
      for (const TemplateUse& use : templates[period]->uses) {
        if (use.trust < kTrusted) {
          if (use.dies) dies_earlier(use.slot);
          continue;
        }
        if (opens || use.at_ns - opened_ns >= kOneSetNs) {
          begins.push_back(std::max(base + use.at_ns, begins.empty() ? base : begins.back()));
          first_use_.push_back(static_cast<std::uint32_t>(uses_.size()));
          opened_ns = use.at_ns;
          opens = false;
        }
        const std::uint32_t tensor = tensor_of(use);
        last_[tensor] = static_cast<std::uint32_t>(uses_.size());
        uses_.push_back({.tensor = tensor,
                         .group = static_cast<std::uint32_t>(begins.size() - 1),
                         .place = use.place,
                         .reads = use.reads(),
                         .writes = use.writes(),
                         .dies = use.dies});
      }
      base += templates[period]->period_ns;
      if (period == 0) second_step_ = static_cast<std::uint32_t>(begins.size());
      if (period == window) window_end_ = uses_.size();
    }
    first_use_.push_back(static_cast<std::uint32_t>(uses_.size()));
    begins.push_back(std::max(base, begins.empty() ? base : begins.back()));
    timing_ = unwaited_;
    last_.assign(bytes_.size(), kNoUse);
    stays_.assign(bytes_.size(), false);
  }

  // After a use that is not planned with: the content goes after the one before.
  void dies_earlier(Slot slot) {
    if (index(slot) >= tensors_.size() || tensors_[index(slot)] == kNoTensor) return;
    uses_[last_[tensors_[index(slot)]]].dies = true;
  }

  std::uint32_t tensor_of(const TemplateUse& use) {
    const auto slot = static_cast<std::uint32_t>(use.slot);
    if (slot >= tensors_.size()) tensors_.resize(std::size_t{slot} + 1, kNoTensor);
    if (tensors_[slot] == kNoTensor) {
      tensors_[slot] = static_cast<std::uint32_t>(bytes_.size());
      bytes_.push_back(0);
      last_.push_back(kNoUse);
      slots_.push_back(use.slot);
    }
    bytes_[tensors_[slot]] = std::max(bytes_[tensors_[slot]], use.bytes);
    return tensors_[slot];
  }

  // Where links are too slow for the compute, everything after waits. True: enough for another plan.
  bool stretch() {
    const std::int64_t late_ns = std::accumulate(waits_.begin(), waits_.end(), std::int64_t{0});
    const std::int64_t former_ns = timing_.begins.back() - unwaited_.begins.back();
    if (late_ns <= unwaited_.period_ns / kStretchOneIn) return false;
    if (std::abs(late_ns - former_ns) < former_ns / kSameOneIn) return false;
    timing_ = unwaited_.with(waits_);
    waited_ = waits_;
    return true;
  }

  // A group waits for all tiers at once. True: somebody waits.
  bool add_waits(const SweepResult& result) {
    for (std::size_t group = 0; group < result.waits_ns.size(); ++group)
      waits_[group] = std::max(waits_[group], result.waits_ns[group]);
    return std::ranges::any_of(result.waits_ns, [](std::int64_t ns) { return ns > 0; });
  }

  std::int64_t begin_ns(const HorizonUse& use) const { return timing_.begins[use.group]; }

  // Without room for what is not foreseen: the part of its uses that the last such step had beyond its template. All
  // that there is where somebody waits for memory alone: what does not pack goes over a link that has time, and what is
  // kept need not go on to one that has none.
  std::uint64_t planned_bytes(const PlannedTier& device) const {
    const std::uint64_t left_bytes = memory_is_late_ && !devices_are_late_ ? device.left_bytes : 0;
    const std::uint64_t bytes = device.capacity_bytes + left_bytes;
    if (match_.matched == 0) return bytes;  // nor was there a template
    const double part = static_cast<double>(match_.added) / static_cast<double>(match_.matched + match_.added);
    const auto unforeseen = static_cast<std::uint64_t>(part * static_cast<double>(bytes));
    return bytes - std::min(unforeseen, bytes / kUnforeseenOneIn);
  }

  bool link_bound() const { return !waited_.empty(); }

  // Where somebody waits for a link, room for one tensor more, the largest that is used then: one way of the link need
  // not wait for the other.
  std::vector<std::uint64_t> spare_in(const PlannedTier& device) const {
    if (!link_bound()) return {};
    std::uint64_t largest = 0;
    for (const HorizonUse& use : uses_)
      if (waited_[use.group] > 0) largest = std::max(largest, bytes_[use.tensor]);
    std::vector<std::uint64_t> spare(waited_.size(), 0);
    for (std::size_t group = 0; group < spare.size(); ++group)
      if (waited_[group] > 0) spare[group] = std::min(largest, device.capacity_bytes / kSpareOneIn);
    return spare;
  }

  void plan_device(const PlannedTier& device) {
    const std::vector<std::uint64_t> spare = spare_in(device);
    SweepInput input{.capacity_bytes = planned_bytes(device),
                     .spare_bytes = spare,
                     .group_begin_ns = timing_.begins,
                     .unwaited_ns = unwaited_.begins,
                     .uses = {},
                     .bytes = bytes_,
                     .in = device.in,
                     .out = device.out,
                     .toll = device.toll,
                     .link_bound = link_bound(),
                     .lead_ns = machine_.lead_ns,
                     .lead_from_ns = timing_.window_ns - machine_.lead_ns,
                     .lead_until_ns = timing_.window_ns + timing_.period_ns + machine_.lead_ns};
    input.uses.reserve(uses_.size());
    std::vector<std::uint32_t> origin;
    origin.reserve(uses_.size());
    for (std::uint32_t at = 0; at < uses_.size(); ++at) {
      const HorizonUse& use = uses_[at];
      if (use.place != device.place) continue;
      const bool leaves = use.next != kNoUse && uses_[use.next].place != device.place;
      input.uses.push_back({use.tensor, use.group, use.reads, use.writes, use.dies, leaves});
      origin.push_back(at);
    }
    const SweepResult result = sweep(input);
    devices_are_late_ = add_waits(result) || devices_are_late_;
    for (std::size_t i = 0; i < origin.size(); ++i)
      if (result.given_up[i]) uses_[origin[i]].give_up = true;
    for (const SweepOut& out : result.outs) {
      clean(device.place, out, origin);
      if (machine_.has_memory)
        events_.push_back({out.when.begin_ns, out.tensor, Event::Kind::kWritten, origin[out.use]});
    }
    std::vector<bool> brought(uses_.size(), false);
    for (const SweepIn& in : result.ins) {
      fetch(device.place, in, input.uses[in.use].group);
      brought[origin[in.use]] = timing_.in_window(in.from_ns);
      if (machine_.has_memory) events_.push_back({in.from_ns, in.tensor, Event::Kind::kNeeded, origin[in.use]});
    }
    make_sure(device, brought);
  }

  // What is used first in the window may not be where the plan takes it for: it is brought shortly before, which is
  // nothing where it is there. `brought`, by use: that is planned.
  void make_sure(const PlannedTier& device, const std::vector<bool>& brought) {
    std::vector<bool> used(bytes_.size(), false);
    for (std::size_t at = window_begin_; at < window_end_; ++at) {
      const HorizonUse& use = uses_[at];
      if (used[use.tensor]) continue;
      used[use.tensor] = true;
      if (use.place != device.place || !use.reads || brought[at]) continue;
      const std::int64_t from_ns = begin_ns(use) - device.in.work_ns(bytes_[use.tensor]) - machine_.lead_ns;
      push_fetch(device.place, use.tensor, from_ns, from_ns, use.group);
    }
  }

  // What the devices move, and the uses, which come in order by groups.
  void put_events_in_order() {
    const auto sooner = [](const Event& a, const Event& b) {
      return std::tuple(a.at_ns, a.order(), a.tensor) < std::tuple(b.at_ns, b.order(), b.tensor);
    };
    std::sort(events_.begin(), events_.end(), sooner);
    const auto moved = static_cast<std::ptrdiff_t>(events_.size());
    events_.reserve(events_.size() + uses_.size());
    std::ptrdiff_t group_begin = moved;
    for (std::uint32_t at = 0; at < uses_.size(); ++at) {
      const HorizonUse& use = uses_[at];
      if (use.place == machine_.memory.place)
        events_.push_back({begin_ns(use), use.tensor, Event::Kind::kUsed, at});
      else if (use.writes || use.dies)
        events_.push_back({begin_ns(use), use.tensor, Event::Kind::kStale});
      if (at + 1 < uses_.size() && begin_ns(uses_[at + 1]) == begin_ns(use)) continue;
      std::sort(events_.begin() + group_begin, events_.end(), sooner);
      group_begin = static_cast<std::ptrdiff_t>(events_.size());
    }
    std::vector<Event> merged;
    merged.reserve(events_.size());
    const auto uses_begin = events_.begin() + moved;
    std::merge(events_.begin(), uses_begin, uses_begin, events_.end(), std::back_inserter(merged), sooner);
    events_ = std::move(merged);
  }

  // Where memory's link is short of time, and trainers read memory itself: room for the next two of what is never
  // written, which goes for nothing. One comes while they compute, and the link has the other behind it.
  std::uint64_t ahead_in_memory() const {
    if (!memory_is_late_) return 0;
    std::vector<bool> written(bytes_.size(), false);
    for (const HorizonUse& use : uses_)
      if (use.writes) written[use.tensor] = true;
    std::uint64_t largest = 0;
    for (const HorizonUse& use : uses_)
      if (use.place == machine_.memory.place && !written[use.tensor]) largest = std::max(largest, bytes_[use.tensor]);
    return std::min(2 * largest, machine_.memory.capacity_bytes / 8);
  }

  // When the horizon begins, memory is full of what was used before, and of that as much lies before any use as behind
  // it. So room is kept for what has not come yet, and what has come begins to go at once. Else what finds no room
  // would all be used one after the other, and so in every step: the way out would have all of its work then, and none
  // meanwhile. Empty: all of it fits, or goes for nothing.
  std::vector<std::uint64_t> room_to_come(const SweepInput& input) const {
    std::vector<bool> came(bytes_.size(), false);
    std::vector<std::uint64_t> coming(unwaited_.begins.size(), 0);
    std::uint64_t total = 0;
    std::uint64_t room = input.capacity_bytes;
    for (const PlannedTier& device : machine_.devices) room += device.capacity_bytes;
    bool written = false;
    for (const SweepUse& use : input.uses) {
      written = written || (use.writes && stays_[use.tensor]);
      if (came[use.tensor] || !stays_[use.tensor]) continue;
      came[use.tensor] = true;
      coming[use.group] += bytes_[use.tensor];
      total += bytes_[use.tensor];
    }
    if (!written || total <= room) return {};
    const double part = static_cast<double>(input.capacity_bytes) / static_cast<double>(total);
    for (std::uint64_t& bytes : coming) {
      total -= bytes;
      bytes = static_cast<std::uint64_t>(part * static_cast<double>(total));
    }
    return coming;
  }

  // Small extents pack better.
  std::uint64_t memory_bytes() const {
    const std::uint64_t all = machine_.memory.capacity_bytes;
    const bool are_small = std::ranges::all_of(bytes_, [&](std::uint64_t bytes) { return bytes <= all / kSmallOneIn; });
    return are_small ? all - all / kSmallSpareOneIn : usable_bytes(all);
  }

  // The copies in memory are written when the device gives one up, and needed when it wants one back.
  void plan_memory() {
    put_events_in_order();
    const std::uint64_t ahead_bytes = ahead_in_memory();
    SweepInput input{.capacity_bytes = memory_bytes() - ahead_bytes,
                     .ahead_bytes = ahead_bytes,
                     .group_begin_ns = timing_.begins,
                     .unwaited_ns = unwaited_.begins,
                     .uses = {},
                     .bytes = bytes_,
                     .in = machine_.memory.in,
                     .out = machine_.memory.out,
                     .goes_again = true,
                     .toll = machine_.memory.toll,
                     .link_bound = link_bound(),
                     .lead_ns = machine_.lead_ns,
                     .lead_from_ns = timing_.window_ns - machine_.lead_ns,
                     .lead_until_ns = timing_.window_ns + timing_.period_ns + machine_.lead_ns};
    input.uses.reserve(events_.size());
    std::vector<std::uint32_t> origin;
    origin.reserve(events_.size());
    std::vector<std::uint32_t> last(bytes_.size(), kNoUse);
    std::uint32_t group = 0;
    for (const Event& event : events_) {
      group = timing_.group_at(event.at_ns, group);
      std::uint32_t& before = last[event.tensor];
      const bool renews = event.kind == Event::Kind::kStale || event.kind == Event::Kind::kWritten;
      if (renews && before != kNoUse) input.uses[before].dies = true;
      if (event.kind == Event::Kind::kStale) {
        before = kNoUse;
        continue;
      }
      const HorizonUse* use = event.kind == Event::Kind::kUsed ? &uses_[event.use] : nullptr;
      before = static_cast<std::uint32_t>(input.uses.size());
      input.uses.push_back({.tensor = event.tensor,
                            .group = group,
                            .reads = use == nullptr ? event.kind == Event::Kind::kNeeded : use->reads,
                            .writes = use == nullptr ? event.kind == Event::Kind::kWritten : use->writes,
                            .dies = use != nullptr && use->dies});
      origin.push_back(event.use);
    }
    const std::vector<std::uint64_t> spare = room_to_come(input);
    input.spare_bytes = spare;
    plan_.evenly = !spare.empty();
    const SweepResult result = sweep(input);
    memory_is_late_ = add_waits(result) || memory_is_late_;
    for (std::size_t i = 0; i < origin.size(); ++i) {
      HorizonUse& use = uses_[origin[i]];
      (use.place == machine_.memory.place ? use.give_up : use.give_up_below) = result.given_up[i];
    }
    for (const SweepOut& out : result.outs) clean(machine_.memory.place, out, origin);
    for (const SweepIn& in : result.ins) fetch(machine_.memory.place, in, input.uses[in.use].group);
  }

  // How many uses of the window have begun once all of the groups before `group` are over.
  std::uint32_t begun(std::uint32_t group) const {
    const std::size_t first = std::min<std::size_t>(first_use_[group] + 1, window_end_);
    return first <= window_begin_ ? 0 : static_cast<std::uint32_t>(first - window_begin_);
  }

  // `origin`: in the horizon, of the sweep's uses. What a copy in memory has from a device was not written there.
  void clean(std::uint32_t place, const SweepOut& out, const std::vector<std::uint32_t>& origin) {
    std::uint32_t write = out.write == kNoUse ? kNoUse : origin[out.write];
    if (write != kNoUse && uses_[write].place != place) write = kNoUse;
    const bool of_device = !machine_.has_memory || place != machine_.memory.place;
    const bool overdue = of_device && out.when.begin_ns < timing_.window_ns && is_old(write);
    if (!overdue && !timing_.in_window(out.when.begin_ns)) return;
    const std::uint32_t group =
        std::min<std::uint32_t>(out.released_group + 1, static_cast<std::uint32_t>(timing_.begins.size() - 1));
    const bool now = write >= window_begin_ && write < window_end_;
    const std::uint32_t of_window = now ? write - static_cast<std::uint32_t>(window_begin_) : kNoUse;
    cleans_.push_back({out.when.begin_ns, {begun(group), slots_[out.tensor], place, of_window, overdue}});
  }

  // What it wrote before the window is still the content when that begins.
  bool is_old(std::uint32_t write) const {
    if (write >= window_begin_ || uses_[write].dies) return false;
    for (std::uint32_t use = uses_[write].next; use < window_begin_; use = uses_[use].next)
      if (uses_[use].writes || uses_[use].dies) return false;
    return true;
  }

  // `due`: the group that needs it.
  void fetch(std::uint32_t place, const SweepIn& in, std::uint32_t due) {
    if (timing_.in_window(in.from_ns)) push_fetch(place, in.tensor, in.from_ns, in.must_begin_ns, due);
  }

  void push_fetch(std::uint32_t place, std::uint32_t tensor, std::int64_t from_ns, std::int64_t must_begin_ns,
                  std::uint32_t due) {
    const std::uint32_t group = timing_.group_at(from_ns, due);
    const std::uint32_t from = first_use_[group] <= window_begin_ ? 0 : begun(group);
    fetches_.push_back({must_begin_ns, {from, slots_[tensor], place, timing_.begins[due] - timing_.window_ns}});
  }

  void emit_uses() {
    plan_.uses.reserve(window_end_ - window_begin_);
    std::vector<bool> went(bytes_.size(), false);
    for (std::size_t at = 0; at < window_begin_; ++at) went[uses_[at].tensor] = uses_[at].give_up;
    for (std::size_t at = window_begin_; at < window_end_; ++at) {
      const HorizonUse& use = uses_[at];
      const bool comes_back = went[use.tensor];
      went[use.tensor] = use.give_up;
      plan_.uses.push_back(
          {.slot = slots_[use.tensor],
           .place = use.place,
           .give_up = use.give_up,
           .give_up_below = use.give_up_below,
           .comes_back = comes_back,
           .writes = use.writes,
           .at_ns = begin_ns(use) - timing_.window_ns,
           .next_ns = use.dies || use.next == kNoUse ? kBeyond : begin_ns(uses_[use.next]) - timing_.window_ns});
    }
  }

  void sort_out() {
    std::sort(cleans_.begin(), cleans_.end(), [](const TimedClean& a, const TimedClean& b) {
      return std::tuple(a.at_ns, a.clean.place, a.clean.slot) < std::tuple(b.at_ns, b.clean.place, b.clean.slot);
    });
    std::sort(fetches_.begin(), fetches_.end(), [](const TimedFetch& a, const TimedFetch& b) {
      return std::tuple(a.at_ns, a.fetch.place, a.fetch.slot) < std::tuple(b.at_ns, b.fetch.place, b.fetch.slot);
    });
    for (const TimedClean& timed : cleans_) plan_.cleans.push_back(timed.clean);
    for (const TimedFetch& timed : fetches_) plan_.fetches.push_back(timed.fetch);
  }

  const Machine& machine_;
  std::vector<HorizonUse> uses_;
  Timing unwaited_;                       // were there no waits
  Timing timing_;                         // as is planned with: with a former round's
  std::vector<std::uint32_t> first_use_;  // by group, and the end of the last
  std::vector<std::uint32_t> tensors_;    // by slot
  std::vector<Slot> slots_;               // by tensor
  std::vector<std::uint64_t> bytes_;      // likewise
  std::vector<std::uint32_t> last_;       // likewise: the use looked at last
  std::vector<bool> stays_;               // likewise: its content is from before the horizon, whose first step reads it
  std::uint32_t second_step_ = 0;         // its first group
  std::vector<Event> events_;
  std::vector<std::int64_t> waits_;   // by group: for how long it does for links, in this round
  std::vector<std::int64_t> waited_;  // likewise, in a former round; empty: nobody did
  bool memory_is_late_ = false;       // in a former round
  bool devices_are_late_ = false;     // likewise
  std::vector<TimedClean> cleans_;
  std::vector<TimedFetch> fetches_;
  std::size_t window_begin_ = 0;  // in `uses_`
  std::size_t window_end_ = 0;
  Match match_{};  // of the window's template
  Plan plan_;
};

}  // namespace

Plan plan(const Machine& machine, const std::vector<const Template*>& templates, std::size_t window) {
  return Planner(machine, templates, window).run();
}

}  // namespace terrace::foresight
