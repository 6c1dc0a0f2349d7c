// SPDX-License-Identifier: Apache-2.0
#include "timetable/search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace terrace::timetable {
namespace {

constexpr std::int32_t kPeriodsTried = 3;  // of a layout; the first begins with links that are free
constexpr double kHbmBusyShare = 0.25;     // what a second of HBM's link counts of one of the block link's
constexpr std::uint64_t kOfLast = 3;       // of the evaluations: for the last phase
constexpr int kLooksMax = 32;              // for a gap of the kind that is looked for

std::vector<Family> families_of(const workload::Workload& workload, const Gaps& gaps) {
  std::vector<std::uint32_t> uses(workload.tensors.size());
  std::vector<std::uint32_t> seen(workload.tensors.size());
  for (const Gap& gap : gaps.gaps) ++uses[gap.tensor];
  using Alike = std::tuple<workload::Class, Tier, Tier, std::uint32_t, std::uint32_t>;
  std::map<Alike, Family> by_kind;
  for (GapId id = 0; id < gaps.gaps.size(); ++id) {
    const Gap& gap = gaps.gaps[id];
    const std::uint32_t place = seen[gap.tensor]++;
    if (!gap.live) continue;
    by_kind[{workload.tensors[gap.tensor].tensor_class, gap.from, gap.to, place, uses[gap.tensor]}].push_back(id);
  }
  std::vector<Family> families;
  for (auto& [kind, family] : by_kind) {
    std::ranges::sort(family, {}, [&](GapId id) { return std::pair(gaps.gaps[id].from_run, id); });
    families.push_back(std::move(family));
  }
  return families;
}

bool spans(const Gap& gap, std::uint32_t run) {
  return gap.around ? run > gap.from_run || run < gap.to_run : run > gap.from_run && run < gap.to_run;
}

}  // namespace

Search::Search(const workload::Workload& workload, const workload::Node& node, const Gaps& gaps, Layout& layout,
               std::uint64_t seed)
    : gaps_(gaps),
      layout_(layout),
      random_(seed),
      families_(families_of(workload, gaps)),
      lowest_(static_cast<std::uint64_t>(node.block_bytes > 0 ? Tier::kBlock : Tier::kHost)) {
  for (const Family& family : families_) live_.insert(live_.end(), family.begin(), family.end());
}

constexpr Search::Phase kFirst{.worse = 0.008, .busy = 0.1};
constexpr Search::Phase kLast{.worse = 0.001, .busy = 0.01};

bool Search::evaluate(State& state) {
  const Laid laid = layout_.lay(state.rests, kPeriodsTried);
  if (!laid.possible) return false;
  const auto busy = [&](std::size_t up, std::size_t down) {
    return static_cast<double>(laid.busy_ns[up] + laid.busy_ns[down]) / 2;
  };
  state.period_ns = laid.period_ns;
  state.busy_ns = busy(2, 3) + kHbmBusyShare * busy(0, 1);
  state.waits_ns = layout_.waits_ns();
  state.waited_for = layout_.waited_for();
  return true;
}

Rests Search::improve(const Rests& rests, std::uint64_t evaluations) {
  State best{.rests = rests, .period_ns = 0, .busy_ns = 0, .waits_ns = {}, .waited_for = {}};
  if (live_.empty() || !evaluate(best)) return rests;
  const std::uint64_t last = evaluations / kOfLast;
  anneal(best, evaluations - last, kFirst);
  anneal(best, last, kLast);
  return best.rests;
}

void Search::anneal(State& best, std::uint64_t evaluations, const Phase& phase) {
  State now = best;
  State next = best;
  for (std::uint64_t done = 0; done < evaluations; ++done) {
    next.rests = now.rests;
    change(now, next.rests);
    if (next.rests == now.rests) continue;
    const double left = 1 - static_cast<double>(done) / static_cast<double>(evaluations);
    const double worse = phase.worse * left * share() * share();
    if (!evaluate(next) || cost_ns(next, phase) > cost_ns(now, phase) * (1 + worse)) continue;
    std::swap(now, next);
    if (now.period_ns < best.period_ns) best = now;
  }
}

void Search::change(const State& from, Rests& rests) {
  switch (below(8)) {
    case 0:
      return set_some(rests);
    case 1:
      return exchange(rests);
    case 2:
      return relieve(from, rests);
    case 3:
      return trade(rests);
    case 4:
    case 5:
      return set_stretch(rests);
    default:
      return trade_bytes(rests);
  }
}

void Search::set_some(Rests& rests) {
  for (std::uint64_t left = 1 + below(2); left > 0; --left) rests[any_gap()] = any_tier();
}

// Two gaps between the same places.
void Search::exchange(Rests& rests) {
  const GapId one = any_gap();
  for (int looks = 0; looks < kLooksMax; ++looks) {
    const GapId other = any_gap();
    const Gap& a = gaps_.gaps[one];
    const Gap& b = gaps_.gaps[other];
    if (a.from != b.from || a.to != b.to || rests[one] == rests[other]) continue;
    return std::swap(rests[one], rests[other]);
  }
}

// What a run waits for, or what is in the way of it: by how long it waits.
void Search::relieve(const State& from, Rests& rests) {
  std::int64_t all_ns = 0;
  for (const std::int64_t wait_ns : from.waits_ns) all_ns += wait_ns;
  if (all_ns == 0) return set_some(rests);
  auto left_ns = static_cast<std::int64_t>(below(static_cast<std::uint64_t>(all_ns)));
  std::uint32_t run = 0;
  for (; left_ns >= from.waits_ns[run]; ++run) left_ns -= from.waits_ns[run];
  const GapId gap = from.waited_for[run];
  if (gap != kNoGap) {
    rests[gap] = any_tier();
  } else {
    for (int looks = 0; looks < kLooksMax; ++looks) {
      const GapId other = any_gap();
      if (!spans(gaps_.gaps[other], run) || static_cast<std::uint64_t>(rests[other]) == lowest_) continue;
      rests[other] = static_cast<Tier>(static_cast<int>(rests[other]) + 1);
      break;
    }
  }
  if (below(2) == 0) rests[any_gap()] = any_tier();
}

// One goes a tier up, another one down.
void Search::trade(Rests& rests) {
  Tier& up = rests[any_gap()];
  if (up != Tier::kHbm) up = static_cast<Tier>(static_cast<int>(up) - 1);
  Tier& down = rests[any_gap()];
  if (static_cast<std::uint64_t>(down) < lowest_) down = static_cast<Tier>(static_cast<int>(down) + 1);
}

// Some of a family, one after the other or one in two or three; and as many of another, half of the time.
void Search::set_stretch(Rests& rests) {
  const std::size_t stride = below(2) == 0 ? 1 : 1 + below(3);
  std::size_t count = 0;
  for (std::uint64_t families = 1 + below(2); families > 0; --families) {
    const Family& family = any_family();
    const auto most = static_cast<double>(family.size());
    if (count == 0) count = std::max<std::size_t>(1, static_cast<std::size_t>(std::pow(most, share())));
    const std::size_t first = below(family.size());
    const Tier tier = any_tier();
    for (std::size_t each = 0; each < std::min(count, family.size()); ++each)
      rests[family[(first + each * stride) % family.size()]] = tier;
  }
}

// One comes from the lowest tier or goes there, and about as many bytes of a family do the opposite.
void Search::trade_bytes(Rests& rests) {
  const auto lowest = static_cast<Tier>(lowest_);
  const GapId one = any_gap();
  const bool comes = rests[one] == lowest;
  rests[one] = comes ? static_cast<Tier>(below(lowest_)) : lowest;
  const Family& family = any_family();
  const std::size_t first = below(family.size());
  const bool in_order = below(2) == 0;
  double left = static_cast<double>(gaps_.gaps[one].bytes) * (0.5 + share());
  for (std::size_t each = 0; each < family.size() && left > 0; ++each) {
    const GapId other = family[in_order ? (first + each) % family.size() : below(family.size())];
    if (other == one || (rests[other] == lowest) == comes) continue;
    rests[other] = comes ? lowest : static_cast<Tier>(below(lowest_));
    left -= static_cast<double>(gaps_.gaps[other].bytes);
  }
}

}  // namespace terrace::timetable
