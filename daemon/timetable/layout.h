// SPDX-License-Identifier: Apache-2.0
// Lays a choice of places out in time: run by run, each move where its link is free and there is room. Internal to
// timetable.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "timetable/gaps.h"
#include "timetable/lane.h"
#include "timetable/room.h"
#include "workload/node.h"
#include "workload/workload.h"

namespace terrace::timetable {

// Where the content of each gap rests meanwhile, by gap; without meaning in a gap that is not live. Between two uses in
// host memory it may be lifted to HBM, which is room for the host's future then.
using Rests = std::vector<Tier>;

// What a gap's moves are. Going: after the use before it; coming: before the use after it.
enum class Hop : std::uint8_t { kGoDown, kGoBlock, kGoUp, kComeHost, kComeUp, kComeDown };
inline constexpr std::size_t kHops = 6;
// When a copy is given up, beside writes and frees.
enum class End : std::uint8_t { kHbm, kHostGoing, kHostComing };
inline constexpr std::size_t kEnds = 3;

// What happens once a period: runs, then each gap's moves and ends.
using EventId = std::uint32_t;
inline constexpr EventId kNoEvent = UINT32_MAX;

// `offset_ns` after an event's begin, `periods` before the period of what speaks of it.
struct Moment {
  EventId event = kNoEvent;
  std::int64_t offset_ns = 0;
  std::int32_t period = 0;  // absolute, as it is laid out
};

struct MoveRecord {
  EventId event = kNoEvent;
  GapId gap = 0;
  Tier from{};
  Tier to{};
  std::int64_t length_ns = 0;  // while it has the link
  Moment ready;                // of the copy that it reads
  Moment gone;                 // of the copy that was there before the one that it makes
};

struct EndRecord {
  EventId event = kNoEvent;
  GapId gap = 0;
  Tier at{};
  std::vector<Moment> after;
};

struct CopyRecord {
  Tier at{};
  std::uint64_t bytes = 0;
  workload::TensorId tensor = 0;
  EventId begins = kNoEvent;
  Moment complete;
  std::int32_t begins_period = 0;
  Moment ends;
};

struct NeedRecord {
  std::uint32_t run = 0;
  Moment ready;
};

// One period of what was laid out.
struct Record {
  std::int32_t period = -1;             // which is recorded
  std::vector<std::int64_t> begins_ns;  // by event; only of what is in `moves`, `ends` and of runs
  std::vector<MoveRecord> moves;
  std::vector<EndRecord> ends;
  std::vector<CopyRecord> copies;
  std::vector<NeedRecord> needs;
  std::vector<std::pair<workload::TensorId, Tier>> for_good;  // copies that are there all the time
};

struct Laid {
  bool possible = false;
  std::uint32_t stuck_run = 0;  // where it is not: for lack of room there
  Tier stuck{};
  std::int64_t period_ns = 0;             // the mean of the last two, or of the only one
  std::array<std::int64_t, 4> busy_ns{};  // in the last: up to HBM, down from it, up from block, down to it
};

class Layout {
 public:
  // All must outlive it.
  Layout(const workload::Workload& workload, const workload::Node& node, const Gaps& gaps);

  // Lays out `periods` periods from where each gap's content rests; `record` is filled with the last.
  Laid lay(const Rests& rests, std::int32_t periods, Record* record = nullptr);

  // Of the last period that was laid out, by run.
  const std::vector<std::int64_t>& begins_ns() const { return begins_ns_; }
  // How long each run waited there, and for which gap's content: the gap, or none where it was for room.
  const std::vector<std::int64_t>& waits_ns() const { return waits_ns_; }
  const std::vector<GapId>& waited_for() const { return waited_for_; }

 private:
  struct Copy {
    bool there = false;
    EventId begins = kNoEvent;
    std::int32_t begins_period = 0;
    std::int64_t ready_ns = 0;
    Moment ready;              // of what is in it now
    Moment complete;           // when it was made
    Moment used;               // the end of the last run that leased it
    std::int64_t gone_ns = 0;  // of the one before it
    Moment gone;
  };
  using Copies = std::array<Copy, kTiers>;
  struct Link {
    Lane lane;
    std::uint64_t bytes_per_s = 0;
    std::int64_t latency_ns = 0;
  };

  Link& link(Tier from, Tier to);
  std::int64_t length_ns(const Link& link, std::uint64_t bytes) const;
  EventId event_of(GapId gap, Hop hop) const;
  EventId event_of(GapId gap, End end) const;
  Copy& copy(workload::TensorId tensor, Tier tier) { return copies_[tensor][static_cast<std::size_t>(tier)]; }
  Room& room(Tier tier) { return rooms_[static_cast<std::size_t>(tier)]; }

  void begin(const Rests& rests);
  void note_for_good(Record& record) const;
  bool run(std::uint32_t index);
  bool fetch_all(std::uint32_t index);
  bool make_room(std::uint32_t index);
  void compute(std::uint32_t index);
  bool leave(std::uint32_t index);
  std::int64_t fetch(GapId gap, std::int64_t until_ns);
  bool go(GapId gap);
  bool go_to_host(GapId gap);
  bool go_to_block(GapId gap);
  bool go_by_host(GapId gap);
  bool go_up(GapId gap);
  void leave_for(GapId gap, Tier tier);
  Moment end_of(std::uint32_t index) const;
  std::int64_t come_from_block(GapId gap);
  std::int64_t come_to_host_from_block(GapId gap);
  std::int64_t come_up(GapId gap);
  std::int64_t come_down(GapId gap, std::int64_t until_ns);
  bool keeps_host_copy(GapId gap) const;
  std::int64_t move(GapId gap, Hop hop, Tier from, Tier to, std::int64_t begin_ns);
  std::int64_t move_for_good(GapId gap, Hop hop, Tier from, Tier to, std::int64_t from_ns);
  void give_up(GapId gap, End end, Tier tier, std::int64_t at_ns, std::vector<Moment> after);
  void end_copy(workload::TensorId tensor, Tier tier, std::int64_t at_ns, Moment ends);
  bool fail(Tier tier);
  std::int64_t never(Tier tier);

  const workload::Workload& workload_;
  const Gaps& gaps_;
  std::array<Link, 4> links_;  // up to HBM, down from it, up from block, down to it
  std::vector<Room> rooms_;
  std::vector<Copies> copies_;
  const Rests* rests_ = nullptr;
  bool keeps_below_ = false;  // host memory has no end: what comes up leaves its copy there
  Record* record_ = nullptr;
  Laid laid_;
  std::int32_t period_ = 0;
  std::int64_t now_ns_ = 0;  // the end of the run before
  std::int64_t at_ns_ = 0;   // when the run that is laid out can begin, by what is known of it
  std::vector<std::int64_t> begins_ns_;
  std::vector<std::int64_t> waits_ns_;
  std::vector<GapId> waited_for_;
};

}  // namespace terrace::timetable
