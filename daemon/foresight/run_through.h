// SPDX-License-Identifier: Apache-2.0
// How long each group of uses waits if copies come and go as a sweep has it: one after the other each way of the link,
// and in the room that there is. O(n log n).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace terrace::foresight {

// A copy that takes room: brought, or born.
struct Coming {
  std::uint32_t group = 0;  // that uses it
  std::uint64_t bytes = 0;
  std::int64_t work_ns = 0;  // of the link; 0: it is born
  std::uint32_t after = 0;   // the going of it after which it is brought
};

// One that leaves room.
struct Going {
  std::uint32_t group = 0;     // that needs the room
  std::uint32_t used = 0;      // an earlier one, after which it may go
  std::uint32_t released = 0;  // likewise, after which it may be written down
  std::uint64_t bytes = 0;
  std::int64_t work_ns = 0;  // of the link; 0: it goes for nothing
};

struct Transfers {
  std::uint64_t capacity_bytes = 0;
  std::span<const std::int64_t> group_begin_ns;  // of each group, did nobody wait, and the end of the last
  std::vector<Coming> comings;
  std::vector<Going> goings;  // by group
  std::int64_t latency_in_ns = 0;
  std::int64_t latency_out_ns = 0;
  double toll = 0;  // part of the time of one way that the other loses
};

// By group: how long it waits once the one before is over.
std::vector<std::int64_t> run_through(const Transfers& transfers);

}  // namespace terrace::foresight
