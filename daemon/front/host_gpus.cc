// SPDX-License-Identifier: Apache-2.0
// GPUs that fail: the engine is told, and so are people, with the names of some of what is lost; and GPUs that
// cannot take back just now what the supervisor still has.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/stake.h"
#include "front/host.h"

namespace terrace::front {
namespace {

constexpr std::size_t kNamedMax = 8;

// A process, by its pidfd.
bool has_ended(const Fd& process) {
  pollfd looked{.fd = process.get(), .events = POLLIN, .revents = 0};
  return poll(&looked, 1, 0) == 1;
}

}  // namespace

// While a former daemon had it.
bool Host::was_lost(std::size_t tier) const { return tier < were_lost_.size() && were_lost_[tier]; }

// Once each.
void Host::look_for_failures() {
  told_failed_.resize(node_.mapped.size());
  for (std::size_t tier = 0; tier < node_.mapped.size(); ++tier) {
    auto failed = node_.mapped[tier] == nullptr ? std::nullopt : node_.mapped[tier]->failure();
    if (!failed || told_failed_[tier]) continue;
    told_failed_[tier] = true;
    if (was_lost(tier)) failed->code = ErrorCode::kDataLoss;
    spdlog::error("{} does not serve: {}; tensors without another copy are lost, all else is served",
                  node_.options.tiers[tier].name, failed->message);
    engine_->tier_failed(now(), static_cast<TierId>(tier), *failed);
  }
}

// The pids of those who have not ended, by space.
std::map<SessionId, std::vector<pid_t>> Host::living() const {
  std::map<SessionId, std::vector<pid_t>> pids;
  for (const auto& [id, session] : sessions_)
    if (!session->region->closed() && !has_ended(session->process)) pids[session->space].push_back(session->peer.pid);
  return pids;
}

// What a GPU cannot take just now the supervisor still has: before it would be lost, nothing is served. What of that a
// trainer wrote that has ended is its siblings' in the share.
Result<void> Host::require_gpus(std::span<const engine::Survivor> survivors) {
  if (not_yet_.empty()) return {};
  const auto pids = living();
  const auto at_stake = [&] {
    auto by_space = engine::tensors_at_stake(*catalog_, survivors, not_yet_);
    std::erase_if(by_space, [&](const auto& entry) { return !pids.contains(entry.first); });
    return by_space;
  };
  auto stakes = at_stake();
  if (stakes.empty()) {  // and nothing is written there from here on
    engine::lend_at_stake(*catalog_, survivors, not_yet_);
    stakes = at_stake();
  }
  if (stakes.empty()) return {};
  for (const auto& [id, session] : sessions_)  // of those who have ended, so that it is in nobody's way
    if (!pids.contains(session->space))
      for (const std::string& name : std::exchange(space_of(session->space).kept, {})) drop_kept(name);
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
std::vector<std::string> Host::not_taken_back() const {
  std::map<TierId, std::string> by_tier;
  for (const engine::LostSegment& segment : not_yet_)
    by_tier.try_emplace(segment.tier, fmt::format("{} cannot take back just now what a former daemon had there ({})",
                                                  node_.options.tiers[index(segment.tier)].name, segment.why));
  std::vector<std::string> sentences;
  std::ranges::copy(by_tier | std::views::values, std::back_inserter(sentences));
  return sentences;
}

void Host::tell_of_losses(const std::vector<engine::Loss>& losses) {
  struct Lost {
    std::size_t count = 0;
    std::vector<std::string> named;
  };
  std::map<TierId, Lost> by_tier;
  for (const engine::Loss& loss : losses) {
    Lost& lost = by_tier[loss.tier];
    if (++lost.count <= kNamedMax)
      lost.named.push_back(fmt::format("'{}' of session {}", loss.name, static_cast<std::uint32_t>(loss.session)));
  }
  for (const auto& [tier, lost] : by_tier) {
    const std::size_t more = lost.count - lost.named.size();
    spdlog::error("{} tensor{} lost with {}: {}{}", lost.count, lost.count == 1 ? " is" : "s are",
                  node_.options.tiers[index(tier)].name, fmt::join(lost.named, ", "),
                  more == 0 ? "" : fmt::format(" and {} more", more));
  }
}

void Host::tell_of_pinning() {
  const std::uint64_t refused = mover_->facts().refused_bytes;
  if (refused != told_refused_bytes_)
    spdlog::warn("{} of memory could not be pinned for the GPUs so far: copies of it are slower",
                 format_bytes(refused));
  told_refused_bytes_ = refused;
}

}  // namespace terrace::front
