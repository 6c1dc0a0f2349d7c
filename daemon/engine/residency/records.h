// SPDX-License-Identifier: Apache-2.0
// The state on its way into the catalog.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/id_map.h"
#include "engine/catalog/memory.h"
#include "engine/residency/holdings.h"
#include "engine/residency/ledger.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/values/options.h"

namespace terrace::engine {

class Records {
 public:
  Records(const Options& options, CatalogMemory& catalog, Ledger& ledger, Registry& registry, Tiers& tiers)
      : options_(options), catalog_(catalog), ledger_(ledger), registry_(registry), tiers_(tiers) {}

  void touch(Holdings& session, Slot slot);
  void touch(Holdings& session);
  static TensorState state_of(const Holdings& session, const Tensor& tensor);
  static TensorRarities rarities_of(const Tensor& tensor);
  SessionRecord record_of(const Holdings& session) const;
  SessionRecord record_of(const Holdings& share, const Member& member) const;
  void commit();
  TensorRecord recorded(const Holdings& session, Slot slot) const;
  std::string_view name(const Holdings& session, Slot slot) const;
  Result<std::vector<std::uint64_t>> reserve_texts(const std::vector<TensorSpec>& specs);
  void free_texts(const std::vector<TensorSpec>& specs, const std::vector<std::uint64_t>& places);
  void free_text(const Holdings& session, Slot slot);
  // kResourceExhausted: no note of so many slots finds room just now.
  Result<void> check_note(Holdings& session, SessionId member, std::size_t slots) const;
  void note(Holdings& session, const GrantRecord& grant, const std::vector<GrantedSlot>& slots);
  void answering(RequestId request, std::uint32_t position);
  void answered(RequestId request);
  // Whether the tier's memory is lost: to a successor nothing of it is worth waiting for.
  void record_loss(TierId tier, bool lost);
  std::size_t take_record();
  auto names_of(const Holdings& session) const {
    return [this, &session](Slot slot) { return name(session, slot); };
  }
  // Nothing waits for the next commit.
  bool is_committed() const { return touched_.empty() && touched_sessions_.empty() && ledger_.freed_records.empty(); }

 private:
  std::uint64_t tenant_record(const Holdings& session) const;
  NodeRecord node_record() const;

  const Options& options_;
  CatalogMemory& catalog_;
  Ledger& ledger_;
  Registry& registry_;
  Tiers& tiers_;
  std::vector<std::pair<SessionId, Slot>> touched_;
  std::vector<SessionId> touched_sessions_;
  IdMap<RequestId, std::uint64_t> notes_;  // of requests whose replies are not in their rings
};

}  // namespace terrace::engine
