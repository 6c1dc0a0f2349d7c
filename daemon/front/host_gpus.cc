// SPDX-License-Identifier: Apache-2.0
// GPUs that fail: the engine is told, and so are people, with the names of some of what is lost.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "front/host.h"

namespace terrace::front {
namespace {

constexpr std::size_t kNamedMax = 8;

}  // namespace

// Once each.
void Host::look_for_failures() {
  told_failed_.resize(node_.mapped.size());
  for (std::size_t tier = 0; tier < node_.mapped.size(); ++tier) {
    const auto failed = node_.mapped[tier] == nullptr ? std::nullopt : node_.mapped[tier]->failure();
    if (!failed || told_failed_[tier]) continue;
    told_failed_[tier] = true;
    spdlog::error("{} does not serve: {}; tensors without another copy are lost, all else is served",
                  node_.options.tiers[tier].name, failed->message);
    engine_->tier_failed(now(), static_cast<TierId>(tier), *failed);
  }
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
