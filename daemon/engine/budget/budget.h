// SPDX-License-Identifier: Apache-2.0
// What each session is guaranteed, and may have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/budget/pending_open.h"
#include "engine/residency/copies.h"
#include "engine/residency/holdings.h"
#include "engine/residency/records.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/residency/wakes.h"
#include "engine/residency/words.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Budget {
 public:
  Budget(Turn& turn, Registry& registry, Tiers& tiers, Wakes& wakes, Records& records, Copies& copies, Words& words)
      : turn_(turn),
        registry_(registry),
        tiers_(tiers),
        wakes_(wakes),
        records_(records),
        copies_(copies),
        words_(words) {}

  std::uint64_t claimed_bytes(TierId tier) const;  // of all sessions
  std::uint64_t floors_bytes(TierId tier, const Holdings* except) const;
  std::uint64_t limit_bytes(const Holdings& session, TierId tier) const;
  bool grow(Holdings& session, TierId tier);
  Error full(const Holdings& session, TierId tier, const std::string& what) const;
  bool can_open(const PendingOpen& open) const;
  void fence_for(const PendingOpen& open);
  void fence(Holdings& session, TierId tier, std::uint64_t at);
  void unfence_all();
  void unfence(Holdings& session, TierId tier);
  void give_back_segments(Holdings& session, TierId tier);
  Error open_refusal(const PendingOpen& open) const;

  std::vector<PendingOpen> opens;  // sessions that wait until their guarantees are backed, the first one first
  bool fenced() const { return fenced_; }

 private:
  bool can_grow(const Holdings& session, TierId tier) const;
  std::uint64_t projected_bytes(const Holdings& session, TierId tier) const;
  static std::string in_words(const Holdings& session, const Tenant& asks);

  Turn& turn_;
  Registry& registry_;
  Tiers& tiers_;
  Wakes& wakes_;
  Records& records_;
  Copies& copies_;
  Words& words_;
  bool fenced_ = false;  // some session may have a fence
};

}  // namespace terrace::engine
