// SPDX-License-Identifier: Apache-2.0
#include "timetable/layout.h"

#include <algorithm>

#include "base/check.h"

namespace terrace::timetable {

Layout::Layout(const workload::Workload& workload, const workload::Node& node, const Gaps& gaps)
    : workload_(workload), gaps_(gaps), copies_(workload.tensors.size()) {
  const auto speed = [](const workload::LinkSpeed& link, workload::Direction way) {
    return Link{.lane = {}, .bytes_per_s = link.bytes_per_s(way), .latency_ns = link.latency.count()};
  };
  links_ = {speed(node.hbm, workload::Direction::kIn), speed(node.hbm, workload::Direction::kOut),
            speed(node.block, workload::Direction::kIn), speed(node.block, workload::Direction::kOut)};
  for (const std::uint64_t bytes : {node.hbm_bytes, node.host_bytes, node.block_bytes}) rooms_.emplace_back(bytes);
  keeps_below_ = node.host_bytes == workload::kUnlimited;
  begins_ns_.resize(workload.runs.size());
  waits_ns_.resize(workload.runs.size());
  waited_for_.resize(workload.runs.size());
}

Layout::Link& Layout::link(Tier from, Tier to) {
  if (from == Tier::kHost) return links_[to == Tier::kHbm ? 0 : 3];
  return links_[from == Tier::kHbm ? 1 : 2];
}

std::int64_t Layout::length_ns(const Link& link, std::uint64_t bytes) const {
  TERRACE_CHECK(link.bytes_per_s > 0);
  return on_link_ns(bytes, link.bytes_per_s);
}

EventId Layout::event_of(GapId gap, Hop hop) const {
  return static_cast<EventId>(workload_.runs.size() + gap * (kHops + kEnds) + static_cast<std::size_t>(hop));
}
EventId Layout::event_of(GapId gap, End end) const {
  return static_cast<EventId>(workload_.runs.size() + gap * (kHops + kEnds) + kHops + static_cast<std::size_t>(end));
}

void Layout::begin(const Rests& rests) {
  rests_ = &rests;
  laid_ = {};
  now_ns_ = 0;
  for (Link& each : links_) each.lane.clear();
  for (Room& each : rooms_) each.clear(0);
  for (Copies& each : copies_) each = {};
  for (GapId id = 0; id < gaps_.gaps.size(); ++id) {
    const Gap& gap = gaps_.gaps[id];
    if (!gap.around || !gap.live) continue;
    copy(gap.tensor, rests[id]).there = true;
    room(rests[id]).add(-kNever + 1, static_cast<std::int64_t>(gap.bytes));
  }
}

Laid Layout::lay(const Rests& rests, std::int32_t periods, Record* record) {
  begin(rests);
  std::int64_t before_ns = 0;
  for (period_ = 0; period_ < periods; ++period_) {
    record_ = period_ + 1 == periods ? record : nullptr;
    if (record_ != nullptr) {
      *record_ = {};
      record_->period = period_;
      record_->begins_ns.resize(workload_.runs.size() + gaps_.gaps.size() * (kHops + kEnds), kNever);
    }
    laid_.busy_ns = {};
    if (period_ + 2 == periods || periods == 1) before_ns = now_ns_;
    for (std::uint32_t index = 0; index < workload_.runs.size(); ++index) {
      if (run(index)) continue;
      laid_.stuck_run = index;
      return laid_;
    }
  }
  if (record != nullptr) note_for_good(*record);
  laid_.possible = true;
  laid_.period_ns = (now_ns_ - before_ns) / std::min<std::int64_t>(2, periods);
  return laid_;
}

void Layout::note_for_good(Record& record) const {
  for (workload::TensorId tensor = 0; tensor < copies_.size(); ++tensor) {
    for (const Tier tier : kAllTiers) {
      const Copy& copy = copies_[tensor][static_cast<std::size_t>(tier)];
      if (copy.there && (copy.begins == kNoEvent || copy.begins_period < record.period))
        record.for_good.emplace_back(tensor, tier);
    }
  }
}

bool Layout::fail(Tier tier) {
  laid_.stuck = tier;
  return false;
}

std::int64_t Layout::never(Tier tier) {
  fail(tier);
  return kNever;
}

bool Layout::run(std::uint32_t index) {
  at_ns_ = now_ns_;
  waited_for_[index] = kNoGap;
  if (!fetch_all(index) || !make_room(index)) return false;
  compute(index);
  return leave(index);
}

// What lies in HBM and is used in host memory comes last, and as late as can be: until then its room is another's.
bool Layout::fetch_all(std::uint32_t index) {
  const Tier place = tier_of(workload_.runs[index].place);
  for (const bool from_above : {false, true}) {
    const std::int64_t until_ns = at_ns_;
    for (std::uint32_t each = gaps_.first_use[index]; each < gaps_.first_use[index + 1]; ++each) {
      const Use& use = gaps_.uses[each];
      if (!use.read || copy(use.tensor, place).there) continue;
      if ((place == Tier::kHost && copy(use.tensor, Tier::kHbm).there) != from_above) continue;
      const std::int64_t there_ns = fetch(use.before, until_ns);
      if (there_ns == kNever) return false;
      if (there_ns > at_ns_) waited_for_[index] = use.before;
      at_ns_ = std::max(at_ns_, there_ns);
    }
  }
  return true;
}

bool Layout::make_room(std::uint32_t index) {
  const Tier place = tier_of(workload_.runs[index].place);
  std::int64_t born = 0;
  for (std::uint32_t each = gaps_.first_use[index]; each < gaps_.first_use[index + 1]; ++each) {
    const Use& use = gaps_.uses[each];
    const Copy& here = copy(use.tensor, place);
    if (use.read) at_ns_ = std::max(at_ns_, here.ready_ns);
    if (use.write && !here.there) born += static_cast<std::int64_t>(workload_.tensors[use.tensor].bytes);
  }
  if (born == 0) return true;
  const std::int64_t fits_ns = room(place).fits_for_good(at_ns_, born);
  if (fits_ns == kNever) return fail(place);
  if (fits_ns > at_ns_) waited_for_[index] = kNoGap;
  at_ns_ = fits_ns;
  return true;
}

void Layout::compute(std::uint32_t index) {
  const workload::Run& what = workload_.runs[index];
  const Tier place = tier_of(what.place);
  const Moment begins{.event = index, .offset_ns = 0, .period = period_};
  const Moment ends{.event = index, .offset_ns = what.compute.count(), .period = period_};
  begins_ns_[index] = at_ns_;
  waits_ns_[index] = at_ns_ - now_ns_;
  now_ns_ = at_ns_ + what.compute.count();
  if (record_ != nullptr) record_->begins_ns[index] = at_ns_;
  for (std::uint32_t each = gaps_.first_use[index]; each < gaps_.first_use[index + 1]; ++each) {
    const Use& use = gaps_.uses[each];
    Copy& here = copy(use.tensor, place);
    if (use.read && record_ != nullptr) record_->needs.push_back({.run = index, .ready = here.ready});
    here.used = ends;
    if (!use.write) continue;
    for (const Tier other : kAllTiers)
      if (other != place && copy(use.tensor, other).there) end_copy(use.tensor, other, at_ns_, begins);
    if (!here.there) {
      room(place).add(at_ns_, static_cast<std::int64_t>(workload_.tensors[use.tensor].bytes));
      here.there = true;
      here.begins = index;
      here.begins_period = period_;
    }
    here.ready_ns = now_ns_;
    here.ready = ends;
  }
}

bool Layout::leave(std::uint32_t index) {
  const Moment ends = end_of(index);
  for (std::uint32_t each = gaps_.first_use[index]; each < gaps_.first_use[index + 1]; ++each) {
    const Use& use = gaps_.uses[each];
    if (!use.free && !go(use.after)) return false;
    if (!use.free) continue;
    for (const Tier tier : kAllTiers)
      if (copy(use.tensor, tier).there) end_copy(use.tensor, tier, now_ns_, ends);
  }
  return true;
}

Moment Layout::end_of(std::uint32_t index) const {
  return {.event = index, .offset_ns = workload_.runs[index].compute.count(), .period = period_};
}

void Layout::end_copy(workload::TensorId tensor, Tier tier, std::int64_t at_ns, Moment ends) {
  Copy& what = copy(tensor, tier);
  const std::uint64_t bytes = workload_.tensors[tensor].bytes;
  room(tier).add(at_ns, -static_cast<std::int64_t>(bytes));
  if (record_ != nullptr && what.begins != kNoEvent)
    record_->copies.push_back({.at = tier,
                               .bytes = bytes,
                               .tensor = tensor,
                               .begins = what.begins,
                               .complete = what.complete,
                               .begins_period = what.begins_period,
                               .ends = ends});
  what = {};
  what.gone_ns = at_ns;
  what.gone = ends;
}

void Layout::give_up(GapId gap, End end, Tier tier, std::int64_t at_ns, std::vector<Moment> after) {
  const EventId event = event_of(gap, end);
  if (record_ != nullptr) {
    record_->begins_ns[event] = at_ns;
    after.push_back(copy(gaps_.gaps[gap].tensor, tier).used);
    record_->ends.push_back({.event = event, .gap = gap, .at = tier, .after = std::move(after)});
  }
  end_copy(gaps_.gaps[gap].tensor, tier, at_ns, {.event = event, .offset_ns = 0, .period = period_});
}

// When the copy that it makes is complete.
std::int64_t Layout::move(GapId id, Hop hop, Tier from, Tier to, std::int64_t begin_ns) {
  const Gap& gap = gaps_.gaps[id];
  Link& over = link(from, to);
  const std::int64_t length = length_ns(over, gap.bytes);
  const EventId event = event_of(id, hop);
  over.lane.take(begin_ns, length);
  laid_.busy_ns[static_cast<std::size_t>(&over - links_.data())] += length;
  room(to).add(begin_ns, static_cast<std::int64_t>(gap.bytes));
  Copy& made = copy(gap.tensor, to);
  if (record_ != nullptr) {
    record_->begins_ns[event] = begin_ns;
    record_->moves.push_back({.event = event,
                              .gap = id,
                              .from = from,
                              .to = to,
                              .length_ns = length,
                              .ready = copy(gap.tensor, from).ready,
                              .gone = made.gone});
  }
  made.there = true;
  made.begins = event;
  made.begins_period = period_;
  made.ready_ns = begin_ns + length + over.latency_ns;
  made.ready = made.complete = {.event = event, .offset_ns = length + over.latency_ns, .period = period_};
  return made.ready_ns;
}

}  // namespace terrace::timetable
