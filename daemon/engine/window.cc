// SPDX-License-Identifier: Apache-2.0
// Room side by side: of all runs of the tier's addresses that are long enough, the one whose copies are missed least.
// Free bytes that lie apart are of no use to a large tensor, and to give copies up in the policy's order until enough
// of them happen to be neighbours gives up many.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"

namespace terrace::engine {
namespace {

// Looking at all of a session's tensors must not take longer than the transfer that it makes room for.
constexpr std::uint64_t kBytesPerTensor = 64;
constexpr std::uint64_t kBytesPerCopy = 512;
constexpr double kGivenUp = 0.01;  // of what the copy would be missed otherwise: the plan brings it back, or nobody
constexpr double kSoonestS = 1e-3;

}  // namespace

// What it costs that the copy goes now; none: it cannot.
std::optional<double> EngineImpl::missed(Session& session, std::size_t tier, Slot slot, const Choice& choice) const {
  const Tensor& tensor = session.at(slot);
  const Level level = tiers_[tier].level;
  if (!may_move(tensor) || tensor.pinned == level || tensor.mark == set_mark_ || tensor.deleted) return std::nullopt;
  if (tensor.published == level && leased(session, slot)) return std::nullopt;
  if (!droppable(session, slot, level)) return std::nullopt;
  const Expectation expected = session.places[tier]->policy->expected(slot);
  if (expected.next_ns < choice.used_after_ns) return std::nullopt;
  const double away_s = static_cast<double>(expected.next_ns - session.foreseen.now_ns()) * 1e-9;
  return static_cast<double>(tensor.extent_bytes()) * (expected.give_up ? kGivenUp : 1) / std::max(away_s, kSoonestS);
}

// Gives up, without a transfer, what lies in the best run of `bytes`. False: there is none.
bool EngineImpl::clear_window(Session& session, std::size_t tier, std::uint64_t bytes, const Choice& choice) {
  const Level level = tiers_[tier].level;
  const Place& place = *session.places[tier];
  if (level == home_level_ || place.fence != kNoFence || bytes < session.tensors.size() * kBytesPerTensor) return false;
  std::vector<std::pair<std::uint64_t, Slot>> copies;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at)
    if (session.tensors[at].live() && at_tier(session.tensors[at], tier))
      copies.emplace_back(session.tensors[at].offset[index(level)], Slot{at});
  if (bytes < copies.size() * kBytesPerCopy) return false;
  std::sort(copies.begin(), copies.end());
  const std::uint64_t capacity = place.space.capacity_bytes();
  const auto end_of = [&](std::size_t at) { return copies[at].first + session.at(copies[at].second).extent_bytes(); };
  double cost = 0;
  double least = std::numeric_limits<double>::infinity();
  std::pair<std::size_t, std::size_t> best;
  std::vector<double> costs;
  for (std::size_t first = 0, last = 0; last < copies.size(); ++last) {  // the run holds the copies [first, last]
    const auto missed_by = missed(session, tier, copies[last].second, choice);
    costs.push_back(missed_by.value_or(0));
    if (!missed_by) {
      first = last + 1;
      cost = 0;
      continue;
    }
    cost += *missed_by;
    const std::uint64_t end = last + 1 < copies.size() ? copies[last + 1].first : capacity;
    while (first <= last && end - (first == 0 ? 0 : end_of(first - 1)) >= bytes) {
      if (cost < least) {
        least = cost;
        best = {first, last + 1};
      }
      cost -= costs[first++];
    }
    if (first > last) cost = 0;
  }
  if (best.first == best.second) return false;
  for (std::size_t at = best.first; at < best.second; ++at)
    evict(session, copies[at].second, level, EvictionReason::kDemand, {mover::Class::kAwaitedWriteBack, kNever}, false);
  return true;
}

// kReady: there is more room side by side than before.
bool EngineImpl::make_room_at_once(Session& session, const Admission& admission,
                                   const std::vector<std::uint64_t>& sizes) {
  if (!session.foreseen.plan) return false;
  const Place& place = *session.places[admission.tier];
  const std::uint64_t largest = *std::ranges::max_element(sizes);
  const bool apart = place.space.largest_free_bytes() >= largest;
  Choice choice = choice_for(session, admission, 0);
  if (!admission.is(Admission::Kind::kPrefetch)) choice.used_after_ns = session.foreseen.now_ns() + kSoonNs;
  return clear_window(session, admission.tier, apart ? admission.missing_bytes : largest, choice);
}

}  // namespace terrace::engine
