// SPDX-License-Identifier: Apache-2.0
// A session's address space in one mapped tier, and the seams in it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "engine/policy/policy.h"
#include "engine/values/request.h"
#include "tier/extent_allocator.h"

namespace terrace::engine {

inline constexpr std::uint64_t kNoFence = UINT64_MAX;

// Free pages that lay apart, shown once more as one run of addresses. It serves one copy, and goes with it.
struct Seam {
  std::uint64_t bytes = 0;
  std::vector<tier::Extent> pieces;    // taken from the space
  std::vector<std::uint32_t> records;  // in the catalog, one a piece
  std::uint64_t made_for = 0;          // the admission; it alone may use it
  bool ready = false;                  // the daemon has mapped it
  bool used = false;                   // by a copy
};

// A session's address space in one mapped tier.
struct Place {
  explicit Place(std::unique_ptr<Policy> order) : policy(std::move(order)) {}

  tier::ExtentAllocator space{kPageBytes};  // over the installed segments that are not on their way out
  std::map<std::uint64_t, Seam> seams;      // by offset
  std::uint64_t idle_bytes = 0;             // of seams that no copy uses, or not yet
  std::unique_ptr<Policy> policy;
  std::uint64_t floor_bytes = 0;
  std::uint64_t adding_bytes = 0;    // of the segment on its way in; one at a time
  std::uint64_t removing_bytes = 0;  // of segments on their way out
  std::uint64_t stuck_bytes = 0;     // of segments that could not be removed
  std::uint64_t fence = kNoFence;    // segments from here on are to be taken back
  std::vector<tier::Extent> fenced;  // free extents behind the fence, given out to nobody
  std::uint64_t fenced_bytes = 0;    // their sum
  std::vector<Handle> fence_wants;   // leased copies behind the fence
  std::vector<tier::Extent> gone;    // segments that nobody can reach; what is free there is retired
  std::uint64_t leaving_bytes = 0;   // of copies whose eviction is under way
  std::uint32_t clean_pause = 0;     // events until the next look for copies to clean
  bool add_failed = false;           // the system had no memory for a segment the last time
  std::string add_error;
  std::optional<Error> write_back_error;  // of the last eviction, for the admission that waits for it

  std::uint64_t mapped_bytes() const { return space.capacity_bytes() + adding_bytes + removing_bytes + stuck_bytes; }
  // For this admission, of which what was stitched for others is no part.
  std::uint64_t free_bytes(std::uint64_t admission) const;
  std::uint64_t used_bytes() const { return space.used_bytes() - fenced_bytes - idle_bytes; }
  // Whether some of the extent lies there or beyond.
  bool reaches(tier::Extent extent, std::uint64_t offset) const;
  // Room for a copy of this size, for this admission: a seam that was made for it, or else what lies side by side.
  std::optional<std::uint64_t> allocate(std::uint64_t bytes, std::uint64_t admission);
  // Undoes allocate().
  void give_back(tier::Extent extent);
  void add_seam(std::uint64_t offset, Seam seam);
  void make_ready(std::uint64_t offset);
  // Aborts unless it is ready. Its pages stay taken from the space.
  Seam take_apart(std::uint64_t offset);
  // Those that are ready, used by no copy, and of this kind.
  std::vector<std::uint64_t> idle_seams(const std::function<bool(const Seam&)>& of_this_kind) const;
  // What its segments count for: law 3.
  std::uint64_t claimed_bytes() const { return std::max(floor_bytes, mapped_bytes()); }

 private:
  void make_idle(std::uint64_t offset, Seam& seam);

  std::multimap<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> idle_;  // admission and bytes: offset
};

// A session's, by tier; null where the tier is not mapped.
class Places {
 public:
  explicit Places(std::size_t tiers = 0) : places_(tiers) {}
  std::unique_ptr<Place>& operator[](TierId tier) { return places_[index(tier)]; }
  const std::unique_ptr<Place>& operator[](TierId tier) const { return places_[index(tier)]; }
  auto begin() const { return places_.begin(); }
  auto end() const { return places_.end(); }

 private:
  std::vector<std::unique_ptr<Place>> places_;
};

}  // namespace terrace::engine
