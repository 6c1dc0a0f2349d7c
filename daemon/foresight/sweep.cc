// SPDX-License-Identifier: Apache-2.0
#include "foresight/sweep.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <tuple>
#include <utility>

#include "foresight/group_at.h"
#include "foresight/occupancy.h"
#include "foresight/run_through.h"

namespace terrace::foresight {
namespace {

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() / 4;
constexpr int kTriesMax = 64;  // candidates that are looked at for one victim
// Bytes inward that one outward counts for. What is written where a link is short of time must leave there, if it is
// not kept; what is read there can come before.
constexpr double kOutward = 3;
// Where a link bounds the step, what is read sooner than the farthest by such a part of the time stays.
constexpr std::int64_t kSoonerOneIn = 4;
// What goes again, of what is used about as late: times away are alike if they differ by less than such a part of one,
// and as late is what is used within such a part.
constexpr std::int64_t kAlikeOneIn = 8;
constexpr std::int64_t kAgainOneIn = 16;

struct Candidate {
  std::int64_t next_ns = 0;
  std::uint32_t tensor = 0;
  std::uint32_t use = 0;  // after which it is one
  bool operator<(const Candidate& other) const {
    return std::tie(next_ns, tensor) < std::tie(other.next_ns, other.tensor);
  }
};

struct State {
  bool resident = false;
  bool clean = false;              // there is, or will be, a valid copy below
  bool written = false;            // within the horizon
  std::int64_t clean_from_ns = 0;  // `clean`
  std::int64_t released_ns = 0;    // when the last write was over
  std::uint32_t released_group = 0;
  std::uint32_t last_write = kNoUse;
  std::uint32_t last_use = kNoUse;
  std::int64_t went_for_ns = 0;  // how long before its next use it went the last time
};

class Sweep {
 public:
  explicit Sweep(const SweepInput& input)
      : input_(input),
        groups_(static_cast<std::uint32_t>(input.group_begin_ns.size() - 1)),
        states_(input.bytes.size()),
        occupied_(groups_) {
    result_.given_up.resize(input.uses.size());
    next_.resize(input.uses.size(), kNoUse);
    renewal_.resize(input.uses.size(), kNoUse);
    std::vector<std::uint32_t> later(input.bytes.size(), kNoUse);
    std::vector<std::uint32_t> renewal(input.bytes.size(), kNoUse);
    for (std::size_t at = input.uses.size(); at-- > 0;) {
      const SweepUse& use = input.uses[at];
      next_[at] = std::exchange(later[use.tensor], static_cast<std::uint32_t>(at));
      renewal_[at] = renewal[use.tensor];
      if (use.writes || use.dies) renewal[use.tensor] = static_cast<std::uint32_t>(at);
    }
    arriving_.resize(groups_ + 1);
    brought_.resize(input.uses.size());
    transfers_ = {.capacity_bytes = input.capacity_bytes + input.ahead_bytes,
                  .group_begin_ns = input.unwaited_ns,
                  .comings = {},
                  .goings = {},
                  .latency_in_ns = input.in.latency_ns,
                  .latency_out_ns = input.out.latency_ns,
                  .toll = input.toll};
  }

  SweepResult run() {
    std::size_t at = 0;
    for (std::uint32_t group = 0; group < groups_; ++group) {
      now_ns_ = begin_ns(group);
      now_bytes_ += arriving_[group];
      std::size_t end = at;
      for (; end < input_.uses.size() && input_.uses[end].group == group; ++end) begin_use(end);
      while (now_bytes_ + spare(group) > static_cast<std::int64_t>(input_.capacity_bytes) && give_one_up(group)) {
      }
      occupied_[group] = now_bytes_ + spare(group);
      for (; at < end; ++at) end_use(static_cast<std::uint32_t>(at));
    }
    begin_early();
    if (late_ || input_.toll > 0 || waits_are_planned()) result_.waits_ns = run_through(transfers_);
    return std::move(result_);
  }

 private:
  std::int64_t begin_ns(std::uint32_t group) const { return input_.group_begin_ns[group]; }
  // With those nothing may be late any more, and there are waits still.
  bool waits_are_planned() const {
    const auto lasts_ns = [](std::span<const std::int64_t> begins) { return begins.back() - begins.front(); };
    return lasts_ns(input_.group_begin_ns) > lasts_ns(input_.unwaited_ns);
  }
  std::int64_t begin_of(std::uint32_t use) const { return use == kNoUse ? kFar : begin_ns(input_.uses[use].group); }
  std::uint32_t group_at(std::int64_t time, std::uint32_t near) const {
    return foresight::group_at(input_.group_begin_ns, time, near);
  }

  std::int64_t spare(std::uint32_t group) const {
    return input_.spare_bytes.empty() ? 0 : static_cast<std::int64_t>(input_.spare_bytes[group]);
  }

  void begin_use(std::size_t at) {
    const SweepUse& use = input_.uses[at];
    State& state = states_[use.tensor];
    if (!state.resident) {
      state.resident = true;
      if (!state.written && use.reads && state.last_use == kNoUse) state.clean = true;  // from before the horizon
      if (!brought_[at]) {
        now_bytes_ += static_cast<std::int64_t>(input_.bytes[use.tensor]);
        transfers_.comings.push_back({.group = use.group, .bytes = input_.bytes[use.tensor]});
      }
    }
    state.last_use = static_cast<std::uint32_t>(at);
  }

  void end_use(std::uint32_t at) {
    const SweepUse& use = input_.uses[at];
    State& state = states_[use.tensor];
    if (state.last_use != at) return;  // used again within the group
    if (use.writes) {
      state.clean = false;
      state.written = true;
      state.released_ns = begin_ns(use.group + 1);
      state.released_group = use.group;
      state.last_write = at;
    }
    if (use.dies) {
      state.resident = false;
      state.clean = false;
      now_bytes_ -= static_cast<std::int64_t>(input_.bytes[use.tensor]);
      transfers_.goings.push_back({use.group + 1, use.group, use.group, input_.bytes[use.tensor], 0});
      return;
    }
    if (use.leaves) {
      try_give_up({0, use.tensor, at}, use.group, true);
      return;
    }
    Candidate candidate{begin_of(next_[at]), use.tensor, at};
    if (input_.goes_again && candidate.next_ns < kFar) prefer_again(candidate, state);
    enlist(candidate);
  }

  // Where what went the last time is to go again: it passes for used a little later, if it stayed away as long then.
  void prefer_again(Candidate& candidate, State& state) const {
    const std::int64_t away = candidate.next_ns - now_ns_;
    if (state.went_for_ns == 0 || std::abs(state.went_for_ns - away) > away / kAlikeOneIn) return;
    state.went_for_ns = 0;
    candidate.next_ns += away / kAgainOneIn;
  }

  bool returns(std::uint32_t use) const { return next_[use] != kNoUse && input_.uses[next_[use]].reads; }

  // By what its going moves; the farthest next use is the first of a heap.
  void enlist(const Candidate& candidate) {
    const bool comes = returns(candidate.use);
    const bool renewed_next = renewal_[candidate.use] == next_[candidate.use];
    const std::size_t out = states_[candidate.tensor].clean ? 0 : renewed_next ? 1 : 2;
    std::vector<Candidate>& heap = candidates_[2 * out + (comes ? 1 : 0)];
    heap.push_back(candidate);
    std::push_heap(heap.begin(), heap.end());
  }

  // The one whose room is kept for the least gain, which is none of them any more. None: there is none.
  std::optional<Candidate> take_least() {
    std::vector<Candidate>* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (std::vector<Candidate>& heap : candidates_) {
      for (; !heap.empty() && is_over(heap.front()); heap.pop_back()) std::pop_heap(heap.begin(), heap.end());
      if (heap.empty()) continue;
      const double gained = gain(heap.front());
      if (best != nullptr && gained >= least) continue;
      best = &heap;
      least = gained;
    }
    if (best == nullptr) return std::nullopt;
    std::pop_heap(best->begin(), best->end());
    const Candidate taken = best->back();
    best->pop_back();
    return taken;
  }

  // What need not move if it is kept, by the time for which that takes its room: the way in until its next use, and the
  // way out until it is written anew.
  double gain(const Candidate& candidate) const {
    const auto until = [&](std::int64_t time) { return static_cast<double>(time - now_ns_); };
    double gained = 0;
    if (returns(candidate.use)) gained += 1 / until(candidate.next_ns);
    if (!states_[candidate.tensor].clean) gained += kOutward / until(begin_of(renewal_[candidate.use]));
    return gained;
  }

  // For good: its next use makes a new one.
  bool is_over(const Candidate& candidate) const {
    const State& state = states_[candidate.tensor];
    return !state.resident || state.last_use != candidate.use;
  }

  bool give_one_up(std::uint32_t group) {
    std::vector<Candidate>& passed = passed_;
    passed.clear();
    bool gone = false;
    for (int tries = 0; tries < kTriesMax && !gone; ++tries) {
      const std::optional<Candidate> candidate = take_least();
      if (!candidate) break;
      const bool near = !passed.empty() && is_near(*candidate, passed.front(), group);
      gone = !near && try_give_up(*candidate, group, false);
      if (!gone) passed.push_back(*candidate);
      if (near) break;
    }
    if (!gone && !passed.empty()) {
      gone = try_give_up(passed.front(), group, true);
      passed.erase(passed.begin());
    }
    for (const Candidate& candidate : passed) enlist(candidate);
    return gone;
  }

  // Used so much sooner than the farthest that a link which is short of time had better not move it instead.
  bool is_near(const Candidate& candidate, const Candidate& farthest, std::uint32_t group) const {
    const std::int64_t end = begin_ns(groups_);
    const auto away = [&](const Candidate& which) { return std::min(which.next_ns, end) - begin_ns(group); };
    return input_.link_bound && returns(candidate.use) &&
           away(candidate) < away(farthest) - away(farthest) / kSoonerOneIn;
  }

  // `anyway`: although the links have no time for it.
  bool try_give_up(const Candidate& candidate, std::uint32_t group, bool anyway) {
    State& state = states_[candidate.tensor];
    const std::uint64_t bytes = input_.bytes[candidate.tensor];
    const std::uint32_t next = next_[candidate.use];
    const bool returns = next != kNoUse && input_.uses[next].reads;
    if (next != kNoUse && input_.uses[next].group <= group) return false;
    if (returns && !anyway && !has_way_back(bytes, group, next)) return false;
    std::int64_t gone_ns = std::max(begin_ns(group), state.clean_from_ns);
    std::optional<Span> out;
    if (!state.clean) {
      const std::int64_t work = input_.out.work_ns(bytes);
      out = out_.take_earliest({state.released_ns, begin_ns(group) - input_.out.latency_ns}, work);
      if (!out && !anyway) return false;
      if (!out) out = out_.take_earliest({state.released_ns, kFar}, work);
      if (!out) out = Span{begin_ns(group), begin_ns(group) + work};
      gone_ns = std::max(begin_ns(group), out->end_ns);
      const std::int64_t due = begin_ns(group) - input_.out.latency_ns;
      late_ |= out->end_ns > due;
    } else if (state.clean_from_ns > begin_ns(group) && !anyway) {
      return false;
    }
    if (out) {
      state.clean = true;
      state.clean_from_ns = out->end_ns;
      result_.outs.push_back({candidate.tensor, candidate.use, state.released_group, state.last_write, *out});
    }
    std::optional<Span> in;
    if (returns) {
      const std::int64_t work = input_.in.work_ns(bytes);
      const std::int64_t due = begin_ns(input_.uses[next].group) - input_.in.latency_ns;
      const std::int64_t earliest = std::max(begin_ns(group + 1), gone_ns);
      in = in_.take_latest({earliest, due}, work);
      if (!in) in = in_.take_earliest({earliest, kFar}, work);
      if (!in) in = Span{earliest, earliest + work};
      late_ |= in->end_ns > due;
      const std::int64_t begin = takes_room_ns(*in, work);
      const std::uint32_t from = std::min(group_at(begin, input_.uses[next].group), input_.uses[next].group);
      arriving_[std::max(from, group + 1)] += static_cast<std::int64_t>(bytes);
      result_.ins.push_back({candidate.tensor, next, begin, std::min(begin, due - work), *in});
      const std::uint32_t gone = std::max(group + 1, group_at(earliest - 1, group) + 1);
      comes_.push_back({gone, std::max(from, group + 1)});
      const auto going = static_cast<std::uint32_t>(transfers_.goings.size());
      transfers_.comings.push_back({input_.uses[next].group, bytes, work, going});
      brought_[next] = true;
    }
    const std::uint32_t used = input_.uses[candidate.use].group;
    transfers_.goings.push_back(
        {std::max(group, used + 1), used, state.released_group, bytes, out ? input_.out.work_ns(bytes) : 0});
    result_.given_up[candidate.use] = true;
    if (next != kNoUse) state.went_for_ns = begin_of(next) - begin_ns(group);
    state.resident = false;
    now_bytes_ -= static_cast<std::int64_t>(bytes);
    return true;
  }

  // A fetch that has the link in pieces has its room from the first of them on. On a link that is short of time that
  // would be long before, for next to nothing.
  std::int64_t takes_room_ns(const Span& in, std::int64_t work) const {
    return input_.link_bound ? std::max(in.begin_ns, in.end_ns - work) : in.begin_ns;
  }

  // Else it must not go, and its way out would be taken for nothing.
  bool has_way_back(std::uint64_t bytes, std::uint32_t group, std::uint32_t next) const {
    const std::int64_t due = begin_ns(input_.uses[next].group) - input_.in.latency_ns;
    return in_.has({begin_ns(group + 1), due}, input_.in.work_ns(bytes));
  }

  // Where there is room before a fetch must begin, it may.
  void begin_early() {
    std::vector<std::pair<std::int64_t, std::uint32_t>> order;  // when it must begin, and which entry of `ins` it is
    order.reserve(result_.ins.size());
    std::uint32_t last = 0;
    for (std::uint32_t i = 0; i < result_.ins.size(); ++i) {
      const SweepIn& in = result_.ins[i];
      if (in.from_ns < input_.lead_from_ns || in.must_begin_ns >= input_.lead_until_ns) continue;
      order.emplace_back(in.must_begin_ns, i);
      last = std::max(last, comes_[i].second);
    }
    if (order.empty()) return;
    std::sort(order.begin(), order.end());
    // Of the groups that this is about.
    const std::uint32_t first = group_at(order.front().first - input_.lead_ns, 0);
    Occupancy tree(std::span<const std::int64_t>(occupied_).subspan(first, last + 1 - first));
    for (const auto& [begin, i] : order) {
      SweepIn& in = result_.ins[i];
      const auto bytes = static_cast<std::int64_t>(input_.bytes[in.tensor]);
      const auto [gone, comes] = comes_[i];
      const std::uint32_t earliest = std::max(gone, group_at(begin - input_.lead_ns, comes));
      if (earliest >= comes) continue;
      const auto room = static_cast<std::int64_t>(input_.capacity_bytes + input_.ahead_bytes) - bytes;
      const std::uint32_t from = first + tree.first_below(earliest - first, comes - first, room);
      tree.add(from - first, comes - first, bytes);
      in.from_ns = std::min(in.from_ns, begin_ns(from));
    }
  }

  const SweepInput& input_;
  std::uint32_t groups_;
  std::vector<State> states_;
  std::vector<std::int64_t> occupied_;                // bytes, by group
  std::vector<std::uint32_t> next_;                   // by use: the same tensor's next one
  std::vector<std::uint32_t> renewal_;                // likewise: the next after which this content is gone
  std::vector<std::int64_t> arriving_;                // bytes that take their room at the beginning of a group
  std::array<std::vector<Candidate>, 6> candidates_;  // heaps by which ways they move, with some that are over
  std::vector<Candidate> passed_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> comes_;  // by entry of `ins`: the groups it is away
  std::vector<bool> brought_;                                   // by use: its room is taken before
  std::int64_t now_ns_ = 0;
  std::int64_t now_bytes_ = 0;
  bool late_ = false;  // a booking is
  Transfers transfers_;
  Timeline in_;
  Timeline out_;
  SweepResult result_;
};

}  // namespace

SweepResult sweep(const SweepInput& input) { return Sweep(input).run(); }

}  // namespace terrace::foresight
