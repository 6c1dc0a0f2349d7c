// SPDX-License-Identifier: Apache-2.0
// The node's tiers, and where in them a tensor's copies lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string>
#include <vector>

#include "engine/residency/holdings.h"
#include "engine/residency/tier.h"
#include "engine/values/options.h"
#include "mover/transfer.h"
#include "tier/extent.h"

namespace terrace::engine {

inline constexpr TierId kNoTier{UINT8_MAX};

class Tiers {
 public:
  explicit Tiers(const Options& options);

  std::size_t size() const { return all_.size(); }
  // Fastest first.
  auto ids() const {
    return std::views::iota(std::size_t{0}, all_.size()) |
           std::views::transform([](std::size_t at) { return TierId(at); });
  }
  Tier& operator[](TierId tier) { return all_[index(tier)]; }
  const Tier& operator[](TierId tier) const { return all_[index(tier)]; }
  TierId home_id() const { return TierId(all_.size() - 1); }
  const Tier& home() const { return all_.back(); }
  auto begin() { return all_.begin(); }
  auto end() { return all_.end(); }
  auto begin() const { return all_.begin(); }
  auto end() const { return all_.end(); }

  TierId memory = kNoTier;
  TierId block = kNoTier;
  Level home_level = Level::kDevice;

  TierId tier_index(const Tensor& tensor, Level level) const;
  Place& place_of(Holdings& session, const Tensor& tensor, Level level) const;
  bool at_tier(const Tensor& tensor, TierId tier) const;
  tier::Location location(const Holdings& session, const Tensor& tensor, Level level) const;
  Placement placement(const Tensor& tensor, Level level) const;
  std::vector<mover::Link> links() const;
  mover::Link link_between(const Tensor& tensor, Level from, Level to) const;
  Result<TierId> tier_of_place(std::uint32_t place, bool with_block) const;
  bool is_gone_at(const Holdings& session, const Tensor& tensor, std::uint64_t offset) const;
  bool is_gone(const Holdings& session, const Tensor& tensor) const;
  bool is_shown_where_gone(const Holdings& session, const Tensor& tensor) const;
  bool is_behind_fence(const Holdings& session, const Tensor& tensor, Level level) const;

 private:
  std::string place_names(bool with_block) const;

  std::vector<Tier> all_;  // fastest first
};

}  // namespace terrace::engine
