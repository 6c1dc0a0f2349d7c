// SPDX-License-Identifier: Apache-2.0
#include "timetable/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace terrace::timetable {
namespace {

using workload::TensorId;

// At one instant, in this order.
enum class Kind : std::uint8_t { kMoveEnd, kRunEnd, kDrop, kRunBegin, kMoveBegin };

struct Event {
  std::int64_t at_ns = 0;
  Kind kind{};
  std::size_t index = 0;  // of the move, the run or the drop
  auto operator<=>(const Event&) const = default;
};

// State that is carried from one event of a period to the next. The first thing that is wrong is kept.
class Checker {
 public:
  Checker(const workload::Workload& workload, const workload::Node& node, const Schedule& schedule)
      : workload_(workload), node_(node), schedule_(schedule), copies_(workload.tensors.size()) {}

  std::optional<std::string> check() {
    find_dead();
    add_moves();
    add_runs();
    for (std::size_t index = 0; index < schedule_.drops.size(); ++index)
      events_.push_back({schedule_.drops[index].at_ns, Kind::kDrop, index});
    for (const Event& event : events_)
      if (event.at_ns < 0 || event.at_ns > schedule_.makespan_ns) fail("something is outside of the period");
    begin();
    std::ranges::sort(events_);
    for (const Event& event : events_) {
      if (found_) return found_;
      now_ns_ = event.at_ns;
      happen(event);
    }
    now_ns_ = schedule_.makespan_ns;
    compare_ends();
    return found_;
  }

 private:
  struct Copy {
    bool there = false;
    bool arriving = false;
    int leaving = 0;  // moves that read it
  };
  using Copies = std::array<Copy, kTiers>;

  void fail(const std::string& what) {
    if (!found_) found_ = fmt::format("at {:.3f} us: {}", static_cast<double>(now_ns_) / 1e3, what);
  }
  Copy& copy(TensorId tensor, Tier tier) { return copies_[tensor][static_cast<std::size_t>(tier)]; }
  std::uint64_t bytes(TensorId tensor) const { return workload_.tensors[tensor].bytes; }

  // Of what each run uses: whether anybody reads what it has after that run, before it is written anew.
  void find_dead() {
    const std::size_t count = workload_.runs.size();
    wanted_.assign(workload_.tensors.size(), false);
    wanted_after_.assign(count, {});
    for (std::size_t at = 2 * count; at-- > 0;) {
      const workload::Run& run = workload_.runs[at % count];
      for (const TensorId tensor : run.free) wanted_[tensor] = false;
      if (at < count)
        for (const TensorId tensor : workload::leased(run)) wanted_after_[at].emplace_back(tensor, wanted_[tensor]);
      for (const TensorId tensor : run.write) wanted_[tensor] = false;
      for (const TensorId tensor : run.read) wanted_[tensor] = true;
    }
  }

  void add_moves() {
    using Link = std::pair<Tier, Tier>;
    std::map<Link, std::vector<std::pair<std::int64_t, std::int64_t>>> taken;
    for (std::size_t index = 0; index < schedule_.moves.size(); ++index) {
      const Move& move = schedule_.moves[index];
      const bool neighbours = std::abs(static_cast<int>(move.from) - static_cast<int>(move.to)) == 1;
      const workload::LinkSpeed& link = move.from == Tier::kBlock || move.to == Tier::kBlock ? node_.block : node_.hbm;
      const std::uint64_t bytes_per_s = move.to < move.from ? link.in_bytes_per_s : link.out_bytes_per_s;
      if (!neighbours || bytes_per_s == 0) return fail(fmt::format("there is no link for tensor {}", move.tensor));
      const std::int64_t left = move.begin_ns + on_link_ns(bytes(move.tensor), bytes_per_s);
      std::int64_t end = left + link.latency.count();
      if (end - move.begin_ns > schedule_.makespan_ns) return fail("a move outlasts the period");
      if (end > schedule_.makespan_ns) {
        end -= schedule_.makespan_ns;
        copy(move.tensor, move.to).arriving = true;
        copy(move.tensor, move.from).leaving += 1;
      }
      taken[{move.from, move.to}].emplace_back(move.begin_ns, left);
      events_.push_back({move.begin_ns, Kind::kMoveBegin, index});
      events_.push_back({end, Kind::kMoveEnd, index});
    }
    for (auto& [link, times] : taken) {
      std::ranges::sort(times);
      times.emplace_back(times.front().first + schedule_.makespan_ns, 0);
      for (std::size_t each = 0; each + 1 < times.size(); ++each)
        if (times[each + 1].first < times[each].second)
          fail(fmt::format("two moves have the link from {} to {}", name(link.first), name(link.second)));
    }
  }

  void add_runs() {
    if (schedule_.runs_ns.size() != workload_.runs.size()) return fail("not every run is there");
    std::int64_t ended = 0;
    for (std::size_t run = 0; run < schedule_.runs_ns.size(); ++run) {
      if (schedule_.runs_ns[run] < ended) fail(fmt::format("run {} begins before the one before it ends", run));
      ended = schedule_.runs_ns[run] + workload_.runs[run].compute.count();
      events_.push_back({schedule_.runs_ns[run], Kind::kRunBegin, run});
      events_.push_back({ended, Kind::kRunEnd, run});
    }
  }

  void begin() {
    for (const Tier tier : kAllTiers)
      for (const TensorId tensor : schedule_.at_start[static_cast<std::size_t>(tier)]) {
        copy(tensor, tier).there = true;
        take(tensor, tier);
      }
    for (TensorId tensor = 0; tensor < copies_.size(); ++tensor)
      for (const Tier tier : kAllTiers)
        if (copy(tensor, tier).arriving) take(tensor, tier);
  }

  void happen(const Event& event) {
    switch (event.kind) {
      case Kind::kMoveEnd:
        return end_move(schedule_.moves[event.index]);
      case Kind::kRunEnd:
        return end_run(event.index);
      case Kind::kDrop:
        return drop(schedule_.drops[event.index]);
      case Kind::kRunBegin:
        return begin_run(event.index);
      case Kind::kMoveBegin:
        return begin_move(schedule_.moves[event.index]);
    }
  }

  void take(TensorId tensor, Tier tier) {
    const std::array capacities = {node_.hbm_bytes, node_.host_bytes, node_.block_bytes};
    std::uint64_t& used = used_[static_cast<std::size_t>(tier)];
    used += bytes(tensor);
    if (used > capacities[static_cast<std::size_t>(tier)])
      fail(fmt::format("{} is over its capacity with tensor {}", name(tier), tensor));
  }
  void give_up(TensorId tensor, Tier tier) {
    copy(tensor, tier).there = false;
    used_[static_cast<std::size_t>(tier)] -= bytes(tensor);
  }
  bool moving(TensorId tensor) const {
    return std::ranges::any_of(copies_[tensor], [](const Copy& each) { return each.arriving || each.leaving > 0; });
  }

  void begin_move(const Move& move) {
    Copy& to = copy(move.tensor, move.to);
    if (!copy(move.tensor, move.from).there)
      return fail(fmt::format("tensor {} moves from {}, where it has no copy", move.tensor, name(move.from)));
    if (to.there || to.arriving)
      return fail(fmt::format("tensor {} moves to {}, where it is already", move.tensor, name(move.to)));
    if (written_.contains(move.tensor)) return fail(fmt::format("tensor {} moves while a run writes it", move.tensor));
    take(move.tensor, move.to);
    to.arriving = true;
    copy(move.tensor, move.from).leaving += 1;
  }
  void end_move(const Move& move) {
    copy(move.tensor, move.to).arriving = false;
    copy(move.tensor, move.to).there = true;
    copy(move.tensor, move.from).leaving -= 1;
  }

  void drop(const Drop& drop) {
    const Copy& here = copy(drop.tensor, drop.at);
    const auto what = [&](std::string_view why) {
      fail(fmt::format("tensor {} is dropped in {}{}", drop.tensor, name(drop.at), why));
    };
    if (!here.there) return what(", where it has no copy");
    if (leased_.contains({drop.tensor, drop.at})) return what(" while a run uses it there");
    if (here.leaving > 0) return what(" while a move reads it");
    const auto there = std::ranges::count_if(copies_[drop.tensor], [](const Copy& each) { return each.there; });
    if (there == 1 && wanted_[drop.tensor]) return what(", the only place that has it");
    give_up(drop.tensor, drop.at);
  }

  void begin_run(std::size_t index) {
    const workload::Run& run = workload_.runs[index];
    const Tier place = tier_of(run.place);
    for (const TensorId tensor : run.read)
      if (!copy(tensor, place).there) fail(fmt::format("run {} reads tensor {}, which is not there", index, tensor));
    for (const TensorId tensor : run.write) {
      if (moving(tensor)) fail(fmt::format("run {} writes tensor {} while it moves", index, tensor));
      for (const Tier other : kAllTiers)
        if (other != place && copy(tensor, other).there) give_up(tensor, other);
      if (!copy(tensor, place).there) take(tensor, place);
      copy(tensor, place).there = true;
      written_.insert(tensor);
      leased_.insert({tensor, place});
    }
    for (const TensorId tensor : run.read) leased_.insert({tensor, place});
  }
  void end_run(std::size_t index) {
    leased_.clear();
    written_.clear();
    for (const auto& [tensor, wanted] : wanted_after_[index]) wanted_[tensor] = wanted;
    for (const TensorId tensor : workload_.runs[index].free) {
      if (moving(tensor)) fail(fmt::format("tensor {} is freed while it moves", tensor));
      for (const Tier tier : kAllTiers)
        if (copy(tensor, tier).there) give_up(tensor, tier);
    }
  }

  void compare_ends() {
    std::set<std::pair<TensorId, Tier>> began;
    for (const Tier tier : kAllTiers)
      for (const TensorId tensor : schedule_.at_start[static_cast<std::size_t>(tier)]) began.insert({tensor, tier});
    for (TensorId tensor = 0; tensor < copies_.size(); ++tensor)
      for (const Tier tier : kAllTiers)
        if (copy(tensor, tier).there != began.contains({tensor, tier}))
          fail(fmt::format("tensor {} is in {} at one end of the period alone", tensor, name(tier)));
  }

  const workload::Workload& workload_;
  const workload::Node& node_;
  const Schedule& schedule_;
  std::vector<Copies> copies_;
  std::vector<bool> wanted_;                                          // by tensor: what it has is still to be read
  std::vector<std::vector<std::pair<TensorId, bool>>> wanted_after_;  // by run
  std::vector<Event> events_;
  std::array<std::uint64_t, kTiers> used_{};
  std::set<std::pair<TensorId, Tier>> leased_;
  std::set<TensorId> written_;
  std::int64_t now_ns_ = 0;
  std::optional<std::string> found_;
};

}  // namespace

std::optional<std::string> violation(const workload::Workload& workload, const workload::Node& node,
                                     const Schedule& schedule) {
  return Checker(workload, node, schedule).check();
}

}  // namespace terrace::timetable
