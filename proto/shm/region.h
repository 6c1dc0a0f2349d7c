// SPDX-License-Identifier: Apache-2.0
// A mapped session region taken apart: typed views of its parts. Both sides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "shm/layout.h"
#include "terrace/error.h"

namespace terrace::shm {

struct RegionView {
  std::byte* base = nullptr;
  RegionHeader* header = nullptr;
  std::span<TableSlot> table;
  RingIndex* submission_index = nullptr;
  Submission* submissions = nullptr;
  RingIndex* completion_index = nullptr;
  Completion* completions = nullptr;
  std::byte* logs = nullptr;
  std::span<std::byte> arena;

  LogIndex& log_index(std::uint32_t log) const { return *reinterpret_cast<LogIndex*>(logs + log * kLogBytes); }
  LogEntry* log_entries(std::uint32_t log) const {
    return reinterpret_cast<LogEntry*>(logs + log * kLogBytes + sizeof(LogIndex));
  }
};

// Views by a header of the caller's own (see lay_out), not by what the memory says: for the side that made the region.
inline RegionView view_region(std::byte* base, const RegionHeader& header) {
  RegionView view;
  view.base = base;
  view.header = reinterpret_cast<RegionHeader*>(base);
  view.table = {reinterpret_cast<TableSlot*>(base + header.table_offset), header.table_slots};
  view.submission_index = reinterpret_cast<RingIndex*>(base + header.submissions_offset);
  view.submissions = reinterpret_cast<Submission*>(base + header.submissions_offset + sizeof(RingIndex));
  view.completion_index = reinterpret_cast<RingIndex*>(base + header.completions_offset);
  view.completions = reinterpret_cast<Completion*>(base + header.completions_offset + sizeof(RingIndex));
  view.logs = base + header.logs_offset;
  view.arena = {base + header.arena_offset, header.arena_bytes};
  return view;
}

// For the side that was given the region: the header must be exactly what lay_out() makes for its number of slots.
inline Result<RegionView> open_region(std::byte* base, std::uint64_t bytes) {
  if (bytes < sizeof(RegionHeader)) {
    return fail(ErrorCode::kInvalidArgument, "session region: " + std::to_string(bytes) + " bytes hold no header");
  }
  const auto& found = *reinterpret_cast<const RegionHeader*>(base);
  if (found.magic != kRegionMagic) return fail(ErrorCode::kInvalidArgument, "session region: wrong magic number");
  if (found.version != kProtocolVersion) {
    return fail(ErrorCode::kInvalidArgument, "session region: version " + std::to_string(found.version) +
                                                 ", this side speaks " + std::to_string(kProtocolVersion));
  }
  RegionHeader expected{};
  lay_out(expected, found.table_slots);
  if (expected.region_bytes != found.region_bytes || found.region_bytes != bytes ||
      expected.table_offset != found.table_offset || expected.submissions_offset != found.submissions_offset ||
      expected.completions_offset != found.completions_offset || expected.logs_offset != found.logs_offset ||
      expected.arena_offset != found.arena_offset || expected.arena_bytes != found.arena_bytes) {
    return fail(ErrorCode::kInvalidArgument, "session region: its offsets are not those of version " +
                                                 std::to_string(kProtocolVersion) + " for " +
                                                 std::to_string(found.table_slots) + " slots");
  }
  return view_region(base, expected);
}

}  // namespace terrace::shm
