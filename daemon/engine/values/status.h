// SPDX-License-Identifier: Apache-2.0
// What the engine can say of itself: the source of `terracectl status`, of GetStatus and of /metrics.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "foresight/template.h"
#include "mover/transfer.h"
#include "terrace/error.h"
#include "tier/extent.h"

namespace terrace::engine {

// Seconds, in buckets from 1 us by factors of four; the last one is everything above.
struct Histogram {
  static constexpr std::size_t kBuckets = 16;
  std::array<std::uint64_t, kBuckets> counts{};
  double sum_seconds = 0;

  // Upper bound of bucket `index` in seconds; the last has none (infinity).
  static double upper_bound_seconds(std::size_t index);
  void record(Duration duration);
};

enum class EvictionReason : std::uint8_t { kDemand, kPrefetch, kHint, kMove, kTakenBack };
inline constexpr std::size_t kEvictionReasons = 5;

struct TierStatus {
  std::string name;  // "device:0", "memory", "block"
  tier::Kind kind{};
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;          // in extents
  std::uint64_t segment_bytes = 0;       // taken from the system; mapped tiers
  std::uint64_t guaranteed_bytes = 0;    // sum over sessions of max(floor, mapped); mapped tiers
  std::uint64_t largest_free_bytes = 0;  // largest single extent that could be given out now
  double fragmentation = 0;              // 0 to 1
  std::uint64_t stitched_bytes = 0;      // of copies whose pages lie apart: see seams
  bool stitches = false;                 // guarantees hold for any order of leases; else for one set at a time
  std::uint64_t retired_bytes = 0;
  std::uint64_t checksum_failures = 0;
  std::uint64_t io_errors = 0;
  std::uint64_t lost_tensors = 0;                // whose only bytes went with memory of the tier
  std::uint64_t write_budget_bytes_per_day = 0;  // 0: there is none
  std::int64_t write_budget_left_bytes = 0;      // until nothing is written ahead of need; negative: owed
  std::array<std::uint64_t, kEvictionReasons> evictions{};
  std::string write_failure{};      // block: why nothing is written to it for now; empty: it takes writes
  std::uint64_t write_outages = 0;  // times that it took none
  std::uint64_t context_bytes = 0;  // of a GPU, what the daemon takes of it itself; likewise
  std::string failure{};            // why it does not serve, from whoever has its device; the engine leaves it empty
};

struct LinkStatus {
  mover::Link link;
  std::uint64_t bytes = 0;
  std::uint64_t transfers = 0;
  std::uint64_t failures = 0;
  std::uint64_t queued = 0;
  std::uint64_t in_flight = 0;
  Histogram duration;
};

struct PlaceStatus {
  std::uint32_t place = 0;
  std::string name;         // "host", "device:0"
  std::uint64_t hits = 0;   // leases taken without a wait, in the table or at the daemon
  std::uint64_t waits = 0;  // granted after a wait
  std::uint64_t errors = 0;
  Histogram wait;
};

struct PrefetchStatus {
  std::uint64_t used = 0;     // leased after it arrived
  std::uint64_t late = 0;     // leased before it arrived
  std::uint64_t wasted = 0;   // evicted or dropped without a lease
  std::uint64_t refused = 0;  // no room without evicting what is leased
};

// How much of what sessions do was foreseen.
struct ForesightStatus {
  std::uint64_t plans = 0;           // that came
  std::uint64_t matched = 0;         // uses that a plan had
  std::uint64_t strayed = 0;         // uses that it did not have, while there was one
  std::uint64_t planned_bytes = 0;   // brought to where they are leased because a plan said so
  std::uint64_t demanded_bytes = 0;  // brought there while somebody waited, or because a client asked ahead
};

struct SessionStatus {
  struct Member {
    SessionId session{};
    std::int32_t pid = 0;
    std::string label;
    std::uint64_t leases = 0;
    bool writes = false;
  };
  SessionId session{};
  Tenant tenant;
  std::int32_t pid = 0;         // a share's: 0
  std::string label;            // a share's: its name
  std::vector<Member> members;  // a share's; of an ordinary session none
  std::uint64_t tensors = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t leases = 0;
  std::uint64_t leased_bytes = 0;
  std::uint64_t step = 0;
  std::uint64_t plan = 0;            // number of the template that is followed; 0: none
  std::uint32_t plan_kind = 0;       // of its steps: 0 train, 1 accumulate, 2 eval
  std::uint64_t plan_uses = 0;       // that it has
  foresight::Match plan_match{};     // of the last such step with what was expected of it
  std::uint64_t matched = 0;         // uses that a plan foresaw
  std::uint64_t strayed = 0;         // uses while there was a plan that did not
  std::uint64_t planned_bytes = 0;   // as in ForesightStatus
  std::uint64_t demanded_bytes = 0;  // likewise
  struct Place {
    std::uint32_t place = 0;
    std::uint64_t guarantee_bytes = 0;
    std::uint64_t mapped_bytes = 0;
    std::uint64_t used_bytes = 0;
  };
  std::vector<Place> places;
};

// Connections that were refused.
struct RefusalStatus {
  static constexpr std::uint32_t kOthers = UINT32_MAX;  // no user's number: of all that are not counted by themselves
  std::uint32_t uid = 0;
  ErrorCode why{};
  std::uint64_t count = 0;
};

// What of a former daemon's this one went on with, and what that one was killed in the midst of.
struct Restored {
  std::uint64_t sessions = 0;
  std::uint64_t tensors = 0;
  std::uint64_t unanswered_requests = 0;  // it had taken them
  std::uint64_t transfers = 0;            // queued or running
};

struct Status {
  bool draining = false;
  std::vector<TierStatus> tiers;
  std::vector<LinkStatus> links;
  std::vector<PlaceStatus> places;
  std::vector<SessionStatus> sessions;
  PrefetchStatus prefetches;
  ForesightStatus foresight;
  std::uint64_t steps = 0;
  std::uint64_t requests_waiting = 0;
  Restored restored;
  std::vector<RefusalStatus> refusals;     // from the front; the engine leaves it empty
  std::uint64_t resubmitted_requests = 0;  // asked again after a former daemon; from the front, the engine leaves it 0
};

}  // namespace terrace::engine
