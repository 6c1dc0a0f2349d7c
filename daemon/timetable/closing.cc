// SPDX-License-Identifier: Apache-2.0
#include "timetable/closing.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

namespace terrace::timetable {
namespace {

constexpr int kSweepsMax = 200;
constexpr int kHalvings = 14;
constexpr std::int64_t kCloseNs = 1000;
constexpr std::array kLonger = {1.0, 1.02, 1.1, 1.5, 4.0};  // periods that are tried, of the one that was laid out

// Event `to` begins at least `weight_ns` after event `from` of `periods` periods before.
struct Edge {
  EventId from = 0;
  EventId to = 0;
  std::int64_t weight_ns = 0;
  std::int64_t periods = 0;
};

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// An event graph: what must come after what, of this period or of the one before (Cuninghame-Green; Cohen, Dubois,
// Quadrat, Viot 1985). The shortest period for which it has a solution is its greatest cycle mean.
class Closing {
 public:
  Closing(const workload::Workload& workload, const workload::Node& node, const Gaps& gaps, const Record& record,
          std::int64_t period_ns)
      : workload_(workload), node_(node), gaps_(gaps), record_(record), period_ns_(period_ns) {
    begin_ns_ = record.begins_ns[0];
  }

  std::optional<Schedule> schedule() {
    if (!(follow_runs() && follow_moves() && follow_rooms())) return std::nullopt;
    order_edges();
    const auto found = std::ranges::find_if(kLonger, [&](double longer) { return solve(times(longer)); });
    if (found == kLonger.end()) return std::nullopt;
    std::int64_t most = times(*found);
    std::int64_t least = workload::compute_time(workload_.runs).count() - 1;
    for (int halving = 0; halving < kHalvings && most - least > kCloseNs; ++halving) {
      const std::int64_t middle = halving == 0 ? most - most / 1024 : least + (most - least) / 2;
      (solve(middle) ? most : least) = middle;
    }
    if (!solve(most)) return std::nullopt;
    return written(most);
  }

 private:
  std::int64_t times(double longer) const {
    return static_cast<std::int64_t>(static_cast<double>(period_ns_) * longer);
  }

  struct At {
    std::int64_t turn = 0;   // periods after the one that begins with run 0
    std::int64_t at_ns = 0;  // in it
  };
  At at(std::int64_t time_ns) const {
    const std::int64_t turn = floor_div(time_ns - begin_ns_, period_ns_);
    return {.turn = turn, .at_ns = time_ns - begin_ns_ - turn * period_ns_};
  }
  bool known(EventId event) const { return event != kNoEvent && record_.begins_ns[event] != kNever; }
  At at_event(EventId event) const { return at(record_.begins_ns[event]); }

  void add(EventId from, std::int64_t from_turn, EventId to, std::int64_t to_turn, std::int64_t weight_ns) {
    // In periods of the events' own places in the period.
    edges_.push_back({from, to, weight_ns, to_turn - from_turn});
  }
  // What a record says: `to`, of the recorded period, waits for `moment`.
  bool wait_for(const Moment& moment, EventId to) {
    if (moment.event == kNoEvent) return true;
    if (!known(moment.event) || !known(to)) return false;
    add(moment.event, at_event(moment.event).turn - (record_.period - moment.period), to, at_event(to).turn,
        moment.offset_ns);
    return true;
  }

  bool follow_runs() {
    const auto count = static_cast<EventId>(workload_.runs.size());
    for (EventId run = 0; run < count; ++run) {
      const EventId next = (run + 1) % count;
      add(run, 0, next, next == 0 ? 1 : 0, workload_.runs[run].compute.count());
    }
    return std::ranges::all_of(record_.needs, [&](const NeedRecord& need) { return wait_for(need.ready, need.run); });
  }

  bool follow_moves() {
    std::array<std::vector<const MoveRecord*>, 4> lanes;
    for (const MoveRecord& move : record_.moves) {
      if (!wait_for(move.ready, move.event) || !wait_for(move.gone, move.event)) return false;
      const std::size_t lane = (move.from == Tier::kHost  ? (move.to == Tier::kHbm ? 0 : 3)
                                : move.from == Tier::kHbm ? 1
                                                          : 2);
      lanes[lane].push_back(&move);
    }
    for (const EndRecord& end : record_.ends)
      if (!std::ranges::all_of(end.after, [&](const Moment& moment) { return wait_for(moment, end.event); }))
        return false;
    for (auto& lane : lanes) {
      std::ranges::sort(lane, {}, [&](const MoveRecord* move) { return at_event(move->event).at_ns; });
      for (std::size_t each = 0; each < lane.size(); ++each) {
        const bool last = each + 1 == lane.size();
        add(lane[each]->event, 0, lane[last ? 0 : each + 1]->event, last ? 1 : 0, lane[each]->length_ns);
      }
    }
    return true;
  }

  struct Change {
    std::int64_t at_ns = 0;
    bool begins = false;
    EventId event = 0;
    std::int64_t offset_ns = 0;
    std::int64_t turn = 0;  // of the event, for which this change is in turn 0
    std::int64_t bytes = 0;
    auto operator<=>(const Change&) const = default;
  };

  bool follow_rooms() {
    for (const Tier tier : {Tier::kHbm, Tier::kHost})
      if (!follow_room(tier)) return false;
    return true;
  }

  // Each copy that begins comes after those that began before it, and after as many ends as it needs to have room.
  bool follow_room(Tier tier) {
    std::vector<Change> changes;
    std::int64_t taken = 0;
    for (const auto& [tensor, where] : record_.for_good)
      if (where == tier) taken += static_cast<std::int64_t>(workload_.tensors[tensor].bytes);
    for (const CopyRecord& copy : record_.copies) {
      if (copy.at != tier) continue;
      if (!known(copy.begins) || !known(copy.ends.event)) return false;
      const At begins = at_event(copy.begins);
      const At ends = at(record_.begins_ns[copy.ends.event] + copy.ends.offset_ns);
      const auto bytes = static_cast<std::int64_t>(copy.bytes);
      taken += bytes * (ends.turn - (begins.turn - (record_.period - copy.begins_period)));
      changes.push_back({.at_ns = begins.at_ns, .begins = true, .event = copy.begins, .bytes = bytes});
      changes.push_back({.at_ns = ends.at_ns,
                         .begins = false,
                         .event = copy.ends.event,
                         .offset_ns = copy.ends.offset_ns,
                         .turn = at_event(copy.ends.event).turn - ends.turn,
                         .bytes = bytes});
    }
    std::ranges::sort(changes);
    return order(changes, taken, tier == Tier::kHbm ? node_.hbm_bytes : node_.host_bytes);
  }

  bool order(const std::vector<Change>& changes, std::int64_t taken, std::uint64_t capacity_bytes) {
    if (capacity_bytes == workload::kUnlimited) return true;
    std::vector<const Change*> ends;
    std::vector<const Change*> begins;
    for (const Change& change : changes) (change.begins ? begins : ends).push_back(&change);
    if (begins.empty()) return true;
    std::size_t ended = 0;
    for (std::size_t each = 0; each < begins.size(); ++each) {
      const Change& change = *begins[each];
      if (each > 0) add(begins[each - 1]->event, 0, change.event, 0, 0);
      taken += change.bytes;
      while (taken > static_cast<std::int64_t>(capacity_bytes)) {
        if (ended == ends.size()) return false;
        taken -= ends[ended]->bytes;
        after(*ends[ended++], change, 0);
      }
    }
    for (; ended < ends.size(); ++ended) after(*ends[ended], *begins.front(), 1);
    add(begins.back()->event, 0, begins.front()->event, 1, 0);
    return true;
  }
  void after(const Change& end, const Change& begin, std::int64_t turn) {
    if (end.event != begin.event || turn != 0) add(end.event, end.turn, begin.event, turn, end.offset_ns);
  }

  // By where the events were laid out, so that one sweep carries a time far.
  void order_edges() {
    const auto place = [&](const Edge& edge) {
      return std::tuple(at_event(edge.to).at_ns, at_event(edge.from).at_ns, edge.to, edge.from);
    };
    std::ranges::sort(edges_, {}, place);
  }

  bool solve(std::int64_t period_ns) {
    times_ns_.assign(record_.begins_ns.size(), 0);
    for (int sweep = 0; sweep < kSweepsMax; ++sweep) {
      bool changed = false;
      for (const Edge& edge : edges_) {
        const std::int64_t least = times_ns_[edge.from] + edge.weight_ns - edge.periods * period_ns;
        if (least <= times_ns_[edge.to]) continue;
        times_ns_[edge.to] = least;
        changed = true;
      }
      if (!changed) return true;
    }
    return false;
  }

  std::int64_t moment_ns(const Moment& moment, std::int64_t period_ns) const {
    const std::int64_t turn = at_event(moment.event).turn - (record_.period - moment.period);
    return times_ns_[moment.event] - times_ns_[0] + turn * period_ns + moment.offset_ns;
  }

  // Whether a copy is there when a period begins.
  bool spans_begin(const CopyRecord& copy, std::int64_t period_ns) const {
    const bool by_run = copy.begins < workload_.runs.size();
    const Moment first =
        by_run ? Moment{.event = copy.begins, .offset_ns = 1, .period = copy.begins_period} : copy.complete;
    const bool freed = copy.ends.event < workload_.runs.size() && copy.ends.offset_ns > 0;
    const std::int64_t from = moment_ns(first, period_ns);
    const std::int64_t until = moment_ns(copy.ends, period_ns) - (freed ? 1 : 0);
    return floor_div(from - 1, period_ns) < floor_div(until, period_ns);
  }

  Schedule written(std::int64_t period_ns) const {
    Schedule schedule{.makespan_ns = period_ns, .at_start = {}, .runs_ns = {}, .moves = {}, .drops = {}};
    const auto in_period = [&](EventId event) {
      const std::int64_t time = times_ns_[event] - times_ns_[0];
      return time - floor_div(time, period_ns) * period_ns;
    };
    for (EventId run = 0; run < workload_.runs.size(); ++run) schedule.runs_ns.push_back(times_ns_[run] - times_ns_[0]);
    for (const MoveRecord& move : record_.moves)
      schedule.moves.push_back({gaps_.gaps[move.gap].tensor, move.from, move.to, in_period(move.event)});
    for (const EndRecord& end : record_.ends)
      schedule.drops.push_back({gaps_.gaps[end.gap].tensor, end.at, in_period(end.event)});
    for (const auto& [tensor, tier] : record_.for_good)
      schedule.at_start[static_cast<std::size_t>(tier)].push_back(tensor);
    for (const CopyRecord& copy : record_.copies)
      if (spans_begin(copy, period_ns)) schedule.at_start[static_cast<std::size_t>(copy.at)].push_back(copy.tensor);
    for (auto& tensors : schedule.at_start) std::ranges::sort(tensors);
    std::ranges::sort(schedule.moves, {},
                      [](const Move& move) { return std::tie(move.begin_ns, move.tensor, move.from); });
    std::ranges::sort(schedule.drops, {}, [](const Drop& drop) { return std::tie(drop.at_ns, drop.tensor, drop.at); });
    return schedule;
  }

  const workload::Workload& workload_;
  const workload::Node& node_;
  const Gaps& gaps_;
  const Record& record_;
  std::int64_t period_ns_;
  std::int64_t begin_ns_ = 0;
  std::vector<Edge> edges_;
  std::vector<std::int64_t> times_ns_;
};

}  // namespace

std::optional<Schedule> close(const workload::Workload& workload, const workload::Node& node, const Gaps& gaps,
                              const Record& record, std::int64_t period_ns) {
  return Closing(workload, node, gaps, record, period_ns).schedule();
}

}  // namespace terrace::timetable
