// SPDX-License-Identifier: Apache-2.0
// GPUs that cannot take back just now what the supervisor still has, and who would lose by it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "engine/stake.h"
#include "front/restore/restore.h"

namespace terrace::front {
namespace {

// A process, by its pidfd.
bool has_ended(const Fd& process) {
  pollfd looked{.fd = process.get(), .events = POLLIN, .revents = 0};
  return poll(&looked, 1, 0) == 1;
}

}  // namespace

// The pids of those who have not ended, by space.
std::map<SessionId, std::vector<pid_t>> Restore::living() const {
  std::map<SessionId, std::vector<pid_t>> pids;
  for (const auto& [id, session] : around_.sessions.known())
    if (!session->region->closed() && !has_ended(session->process)) pids[session->space].push_back(session->peer.pid);
  return pids;
}

// What a GPU cannot take just now the supervisor still has: before it would be lost, nothing is served. What of that a
// trainer wrote that has ended is its siblings' in the share.
Result<void> Restore::require_gpus(std::span<const engine::Survivor> survivors) {
  if (not_yet_.empty()) return {};
  const auto pids = living();
  const auto at_stake = [&] {
    auto by_space = engine::tensors_at_stake(around_.home.catalog(), survivors, not_yet_);
    std::erase_if(by_space, [&](const auto& entry) { return !pids.contains(entry.first); });
    return by_space;
  };
  auto stakes = at_stake();
  if (stakes.empty()) {  // and nothing is written there from here on
    engine::lend_at_stake(around_.home.catalog(), survivors, not_yet_);
    stakes = at_stake();
  }
  if (stakes.empty()) return {};
  for (const auto& [id, session] : around_.sessions.known())  // of those who have ended, so that it is in nobody's way
    if (!pids.contains(session->space))
      for (const std::string& name : std::exchange(around_.segments.space_of(session->space).kept, {}))
        around_.keeper.drop(name);
  std::size_t tensors = 0;
  std::vector<pid_t> whose;
  for (const auto& [space, count] : stakes) {
    tensors += count;
    std::ranges::copy(pids.at(space), std::back_inserter(whose));
  }
  return fail(
      ErrorCode::kResourceExhausted,
      fmt::format("{}, and {} tensor{} of pid {} {} bytes nowhere else; see to that GPU (where memory is wanting, "
                  "end what else runs there), end that trainer, or have what was there lost by take_back = "
                  "\"give_up\" in its [[tier]]",
                  fmt::join(not_taken_back(), "; "), tensors, tensors == 1 ? "" : "s", fmt::join(whose, ", "),
                  tensors == 1 ? "has" : "have"));
}

// A sentence for each of them.
std::vector<std::string> Restore::not_taken_back() const {
  std::map<TierId, std::string> by_tier;
  for (const engine::LostSegment& segment : not_yet_)
    by_tier.try_emplace(segment.tier, fmt::format("{} cannot take back just now what a former daemon had there ({})",
                                                  around_.node.options.tiers[index(segment.tier)].name, segment.why));
  std::vector<std::string> sentences;
  std::ranges::copy(by_tier | std::views::values, std::back_inserter(sentences));
  return sentences;
}

}  // namespace terrace::front
