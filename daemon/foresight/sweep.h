// SPDX-License-Identifier: Apache-2.0
// One pass over the uses that are to come, in one tier: what has to go when, so that what is used fits, and when it is
// written down and brought back over the links below. Belady's choice, the farthest next use, weighed by what moves,
// among those that the links have time for. O(n log n).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "foresight/plan.h"
#include "foresight/timeline.h"

namespace terrace::foresight {

// How fast bytes move one way between a tier and the one below.
struct LinkPace {
  double bytes_per_s = 0;  // 0: there is none
  std::int64_t latency_ns = 0;
  std::int64_t work_ns(std::uint64_t bytes) const {
    return static_cast<std::int64_t>(static_cast<double>(bytes) / bytes_per_s * 1e9) + 1;
  }
};

struct SweepUse {
  std::uint32_t tensor = 0;
  std::uint32_t group = 0;  // those of one group are needed at once
  bool reads = false;       // the content is needed
  bool writes = false;
  bool dies = false;    // afterwards the content is not needed by anybody
  bool leaves = false;  // afterwards it is used in another tier
};

struct SweepInput {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t ahead_bytes = 0;                 // beside it, for what comes before its use; nothing stays there
  std::span<const std::uint64_t> spare_bytes{};  // of it, by group: what is to stay free then. Empty: nothing
  std::span<const std::int64_t> group_begin_ns;  // of each group, and the end of the last
  std::span<const std::int64_t> unwaited_ns;     // the same, did nobody wait
  std::vector<SweepUse> uses;                    // by group
  std::span<const std::uint64_t> bytes;          // of each tensor
  LinkPace in;
  LinkPace out;
  bool goes_again = false;   // of what is used about as late, that goes which went the last time
  double toll = 0;           // part of the time of one that the other loses, where it is asked how late a link is
  bool link_bound = false;   // a link is short of time: rather wait for it than have it move more
  std::int64_t lead_ns = 0;  // fetches may begin that much earlier than they must, where there is room;
  std::int64_t lead_from_ns = std::numeric_limits<std::int64_t>::min();   // it is looked for of those that must begin
  std::int64_t lead_until_ns = std::numeric_limits<std::int64_t>::max();  // then
};

struct SweepOut {
  std::uint32_t tensor = 0;
  std::uint32_t use = 0;             // after which it goes
  std::uint32_t released_group = 0;  // it is over when the copy may be written down
  std::uint32_t write = kNoUse;      // the use that wrote it last; kNoUse: none within the horizon
  Span when;
};

struct SweepIn {
  std::uint32_t tensor = 0;
  std::uint32_t use = 0;           // for which it comes
  std::int64_t from_ns = 0;        // there is room from then on
  std::int64_t must_begin_ns = 0;  // to be in time; one that comes late had to begin before it can
  Span when;
};

struct SweepResult {
  std::vector<bool> given_up;  // by use: the copy goes before the next one
  std::vector<SweepOut> outs;
  std::vector<SweepIn> ins;
  std::vector<std::int64_t> waits_ns;  // by group, beyond `unwaited_ns`: for links and room. Empty: nobody waits
};

SweepResult sweep(const SweepInput& input);

}  // namespace terrace::foresight
