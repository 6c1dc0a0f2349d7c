// SPDX-License-Identifier: Apache-2.0
// What the engine keeps of a session, of the processes that have a part in it, and of its part of each mapped tier.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/admission.h"
#include "engine/catalog/records.h"
#include "engine/foreseen.h"
#include "engine/name_index.h"
#include "engine/place.h"
#include "engine/seam_records.h"
#include "engine/tensor_table.h"
#include "engine/values/lease_table.h"

namespace terrace::engine {

// One process's part in a session: what it leases by, and who it is.
struct Member {
  SessionId id{};
  std::size_t record = 0;  // in the catalog
  LeaseTable table;
  std::string label;
  std::array<std::uint8_t, 16> token{};  // the front's, kept for its successor
  std::int32_t pid = 0;
  bool maps_segments = false;
  bool writes = true;  // a share's: whether it may
  std::optional<RequestId> close_request;
};

// Tensors, and the memory that they lie in. An ordinary session is one process's, which is its only member, under the
// same number, for life. A share's members come and go, each under a number of its own, and it ends with the last one;
// a tensor has the same slot in all their tables.
struct Session {
  enum class Life : std::uint8_t { kOpen, kEnding };

  SessionId id{};
  std::size_t record = 0;  // in the catalog
  bool touched = false;    // since the last commit
  Tenant tenant;
  std::string share;  // its name; empty: an ordinary session
  std::vector<Member> members;
  Life life = Life::kOpen;

  TensorTable tensors;
  std::vector<Slot> free_slots;                // last freed first
  NameIndex names;                             // of live tensors
  std::vector<Slot> leaving;                   // deleted tensors that something still keeps
  std::set<Slot> gone;                         // published where memory is gone, and leased or moved just now
  std::vector<std::unique_ptr<Place>> places;  // by tier index; null where the tier is not mapped

  SeamRecords seam_records;
  std::list<Admission> admissions;                          // in order of arrival
  std::deque<std::pair<Handle, std::uint32_t>> prefetches;  // not begun: tensor, place
  std::uint32_t prefetches_running = 0;
  Foreseen foreseen;
  std::array<Declared, 3> declared{};  // by kind
  bool write_back_failed = false;      // of some place, since it was looked at
  std::uint32_t cleanings = 0;
  std::uint32_t hand = 0;       // the slot that is looked at next for what to write back early
  std::uint32_t transfers = 0;  // queued or in flight
  std::uint64_t events = 1;     // goes up whenever something happened that a waiting admission may go on by
  bool stirred = false;         // in the engine's list of sessions to look at

  std::uint64_t lives = 1;  // goes up whenever a tensor is deleted: handles may name nothing any more
  std::uint64_t tensor_count = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t step = 0;

  Tensor& at(Slot slot) { return tensors[index(slot)]; }
  const Tensor& at(Slot slot) const { return tensors[index(slot)]; }
  bool is_share() const { return !share.empty(); }
  // The tiers in which an admission waits for room. planned_too: a plan's own, too.
  std::bitset<kTiersMax> awaited(bool planned_too) const {
    std::bitset<kTiersMax> tiers;
    for (const Admission& admission : admissions)
      if (admission.phase == Admission::Phase::kWaiting && (planned_too || !admission.planned) &&
          (admission.block == Admission::Block::kSpace || admission.block == Admission::Block::kLeases))
        tiers.set(admission.tier);
    return tiers;
  }
  Member* find_member(SessionId member) {
    const auto found = std::ranges::find(members, member, &Member::id);
    return found == members.end() ? nullptr : &*found;
  }
  // Whether everybody's word shows the tensor's copy, for reading alone.
  bool is_shared(const Tensor& tensor) const { return is_share() && tensor.holder == SessionId{}; }
  // Whether the member's word is one of those that show it.
  static bool shows(const Member& member, const Tensor& tensor) {
    return tensor.holder == SessionId{} || tensor.holder == member.id;
  }
  // All words that show the copy, as one: what any of them says of leases; of writing, only one that may write.
  shm::Word word(Slot slot) const { return is_share() ? shared_word(slot) : members.front().table.load(slot); }
  shm::Word shared_word(Slot slot) const;
};

}  // namespace terrace::engine
