// SPDX-License-Identifier: Apache-2.0
// Tensors, the memory that they lie in, and the processes that have a part in them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "engine/catalog/records.h"
#include "engine/residency/name_index.h"
#include "engine/residency/place.h"
#include "engine/residency/seam_records.h"
#include "engine/residency/tensor.h"
#include "engine/residency/tensor_table.h"
#include "engine/values/lease_table.h"
#include "engine/values/request.h"

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
struct Holdings {
  virtual ~Holdings() = default;

  enum class Life : std::uint8_t { kOpen, kEnding };

  SessionId id{};
  std::size_t record = 0;  // in the catalog
  bool touched = false;    // since the last commit
  Tenant tenant;
  std::string share;  // its name; empty: an ordinary session
  std::vector<Member> members;
  Life life = Life::kOpen;

  TensorTable tensors;
  std::vector<Slot> free_slots;  // last freed first
  NameIndex names;               // of live tensors
  std::vector<Slot> leaving;     // deleted tensors that something still keeps
  std::set<Slot> gone;           // published where memory is gone, and leased or moved just now
  Places places;

  SeamRecords seam_records;
  bool write_back_failed = false;  // of some place, since it was looked at
  std::uint32_t cleanings = 0;
  std::uint32_t hand = 0;       // the slot that is looked at next for what to write back early
  std::uint32_t transfers = 0;  // queued or in flight
  std::uint64_t events = 1;     // goes up whenever something happened that a waiting admission may go on by
  bool stirred = false;         // among those that are to be looked at

  std::uint64_t lives = 1;  // goes up whenever a tensor is deleted: handles may name nothing any more
  std::uint64_t tensor_count = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t step = 0;

  Tensor& at(Slot slot) { return tensors[index(slot)]; }
  const Tensor& at(Slot slot) const { return tensors[index(slot)]; }
  bool is_share() const { return !share.empty(); }
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
