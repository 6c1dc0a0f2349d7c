// SPDX-License-Identifier: Apache-2.0
#include "timetable/timetable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "timetable/check.h"
#include "timetable/closing.h"
#include "timetable/filling.h"
#include "timetable/gaps.h"
#include "timetable/layout.h"
#include "timetable/search.h"

namespace terrace::timetable {
namespace {

constexpr std::array kPeriodsToClose = {3, 4, 5, 6};  // which of them is taken for the one that repeats
constexpr std::int32_t kPeriodsOfFirst = 2;           // that a first choice is laid out for
constexpr int kRounds = 3;                            // of first choices, each by the times of the best so far
constexpr std::array kSpares = {Spare{0.05, 0.15}, Spare{0.02, 0.03}, Spare{0.05, 0.08}, Spare{0.02, 0.25},
                                Spare{0.1, 0.15},  Spare{0.2, 0.15},  Spare{0.1, 0.25},  Spare{0.2, 0.35}};
// Of the evaluations: for first choices.
constexpr std::uint64_t kOfFirst = 20;
constexpr std::uint64_t kOfSearch = 60'000;  // evaluations of one search; with more there are several

class Planning {
 public:
  Planning(const workload::Workload& workload, const workload::Node& node, const PlanOptions& options)
      : workload_(workload), node_(node), options_(options), gaps_(gaps_of(workload)), layout_(workload, node, gaps_) {}

  Result<Schedule> run() {
    fill_first();
    if (!best_) return no_room();
    if (auto schedule = searched()) return *schedule;
    if (auto schedule = closed(*best_)) return *schedule;
    if (auto schedule = closed(all_down())) return *schedule;
    return fail(ErrorCode::kInternal,
                fmt::format("{}: no period of the plan repeats on node {}", workload_.name, node_.name));
  }

 private:
  Rests all_down() const { return Rests(gaps_.gaps.size(), node_.block_bytes > 0 ? Tier::kBlock : Tier::kHost); }

  // The best of some searches, each by a seed of its own.
  std::optional<Schedule> searched() {
    if (options_.evaluations <= used_) return std::nullopt;
    const std::uint64_t left = options_.evaluations - used_;
    const std::uint64_t searches = std::max<std::uint64_t>(1, options_.evaluations / kOfSearch);
    std::optional<Schedule> best;
    for (std::uint64_t each = 0; each < searches; ++each) {
      Search search(workload_, node_, gaps_, layout_, options_.seed + each);
      std::optional<Schedule> found = closed(search.improve(*best_, left / searches));
      if (found && (!best || found->makespan_ns < best->makespan_ns)) best = std::move(found);
    }
    return best;
  }

  bool take(const Rests& rests) {
    const Laid laid = layout_.lay(rests, kPeriodsOfFirst);
    ++used_;
    if (!laid.possible || (best_ && laid.period_ns >= period_ns_)) return laid.possible;
    best_ = rests;
    period_ns_ = laid.period_ns;
    begins_ns_ = layout_.begins_ns();
    return true;
  }

  // The first by the times of runs that wait for nothing, and of each round by those of the best so far.
  void fill_first() {
    begins_ns_.clear();
    for (const workload::Run& run : workload_.runs) {
      begins_ns_.push_back(period_ns_);
      period_ns_ += run.compute.count();
    }
    const std::uint64_t most =
        options_.evaluations < 2 ? 1 : std::max<std::uint64_t>(2, options_.evaluations / kOfFirst);
    for (int round = 0; round < kRounds; ++round) {
      const std::vector<std::int64_t> begins_ns = begins_ns_;
      const Clock clock{.begins_ns = begins_ns, .period_ns = period_ns_};
      for (const Spare& spare : kSpares) {
        if (best_ && used_ >= most) return;
        take(fill(workload_, node_, gaps_, clock, spare));
      }
    }
    if (!best_) take(all_down());
  }

  std::optional<Schedule> closed(const Rests& rests) {
    std::optional<Schedule> best;
    for (const std::int32_t periods : kPeriodsToClose) {
      Record record;
      const Laid laid = layout_.lay(rests, periods, &record);
      if (!laid.possible) continue;
      std::optional<Schedule> schedule = close(workload_, node_, gaps_, record, laid.period_ns);
      if (!schedule || violation(workload_, node_, *schedule)) continue;
      const bool settled = schedule->makespan_ns >= laid.period_ns;
      if (!best || schedule->makespan_ns < best->makespan_ns) best = std::move(schedule);
      if (settled && options_.evaluations < 2) break;
    }
    return best;
  }

  Result<Schedule> no_room() {
    const Laid laid = layout_.lay(all_down(), 1);
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("{}: run {}, \"{}\", finds no room in {} on node {}", workload_.name, laid.stuck_run,
                            workload_.runs[laid.stuck_run].name, name(laid.stuck), node_.name));
  }

  const workload::Workload& workload_;
  const workload::Node& node_;
  PlanOptions options_;
  Gaps gaps_;
  Layout layout_;
  std::uint64_t used_ = 0;  // evaluations
  std::optional<Rests> best_;
  std::int64_t period_ns_ = 0;
  std::vector<std::int64_t> begins_ns_;
};

Result<void> check_node(const workload::Workload& workload, const workload::Node& node) {
  const auto has = [](const workload::LinkSpeed& link) { return link.in_bytes_per_s > 0 && link.out_bytes_per_s > 0; };
  if (node.host_bytes > 0 && has(node.hbm) && (node.block_bytes == 0 || has(node.block))) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: node {} has no host memory, or no speed for a link; a plan needs both", workload.name,
                          node.name));
}

}  // namespace

Result<Schedule> plan(const workload::Workload& workload, const workload::Node& node, const PlanOptions& options) {
  if (const Result<void> checked = check_node(workload, node); !checked) return std::unexpected(checked.error());
  return Planning(workload, node, options).run();
}

}  // namespace terrace::timetable
