// SPDX-License-Identifier: Apache-2.0
#include "front/node/failures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "base/bytes.h"

namespace terrace::front {
namespace {

constexpr std::size_t kNamedMax = 8;

}  // namespace

void Failures::look(engine::Engine& engine, Time now) {
  told_.resize(node_.mapped.size());
  for (std::size_t tier = 0; tier < node_.mapped.size(); ++tier) {
    auto failed = node_.mapped[tier] == nullptr ? std::nullopt : node_.mapped[tier]->failure();
    if (!failed || told_[tier]) continue;
    told_[tier] = true;
    if (was_lost(tier)) failed->code = ErrorCode::kDataLoss;
    spdlog::error("{} does not serve: {}; tensors without another copy are lost, all else is served",
                  node_.options.tiers[tier].name, failed->message);
    engine.tier_failed(now, static_cast<TierId>(tier), *failed);
  }
}

void Failures::tell_of(const std::vector<engine::Loss>& losses) const {
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

void Failures::tell_of(const std::vector<engine::OutageNews>& outages) const {
  for (const engine::OutageNews& news : outages) {
    const std::string& tier = node_.options.tiers[index(news.tier)].name;
    if (news.begins)
      spdlog::error(
          "nothing is written to {} for now: {}; every copy stays where it is, and {} is tried again by itself", tier,
          news.why.message, tier);
    else
      spdlog::warn("{} is written again, after {} s", tier,
                   std::chrono::duration_cast<std::chrono::seconds>(news.lasted).count());
  }
}

void Failures::tell_of_pinning(const mover::MoverFacts& facts) {
  const std::uint64_t refused = facts.refused_bytes;
  if (refused != told_refused_bytes_)
    spdlog::warn("{} of memory could not be pinned for the GPUs so far: copies of it are slower",
                 format_bytes(refused));
  told_refused_bytes_ = refused;
}

}  // namespace terrace::front
