// SPDX-License-Identifier: Apache-2.0
// Tiers that fail: the engine is told, and so are people, with the names of some of what is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/time.h"
#include "engine/engine.h"
#include "front/node/node.h"
#include "mover/mover.h"

namespace terrace::front {

// The reactor thread's. `node` is borrowed, and outlives it.
class Failures {
 public:
  explicit Failures(const Node& node) : node_(node) {}

  // By TierId: TierRecord::lost of what a former daemon left.
  void inherit(std::vector<bool> were_lost) { were_lost_ = std::move(were_lost); }
  // While a former daemon had it.
  bool was_lost(std::size_t tier) const { return tier < were_lost_.size() && were_lost_[tier]; }

  // Tells of each that failed, once.
  void look(engine::Engine& engine, Time now);
  void tell_of(const std::vector<engine::Loss>& losses) const;
  void tell_of(const std::vector<engine::OutageNews>& outages) const;
  void tell_of_pinning(const mover::MoverFacts& facts);

 private:
  const Node& node_;
  std::vector<bool> were_lost_;
  std::vector<bool> told_;  // by TierId: the engine knows, and the log has it
  std::uint64_t told_refused_bytes_ = 0;
};

}  // namespace terrace::front
