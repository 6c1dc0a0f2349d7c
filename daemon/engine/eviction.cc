// SPDX-License-Identifier: Apache-2.0
// Copies are given up: clean ones for nothing, dirty ones after a write-back, downward tier by tier.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <span>

#include "engine/engine_impl.h"
#include "engine/values/planted.h"

namespace terrace::engine {
namespace {

// What would lie side by side in a space if more of it were free.
class FreeRuns {
 public:
  explicit FreeRuns(const tier::ExtentAllocator& space) {
    for (const tier::Extent& free : space.free_within({0, space.capacity_bytes()}))
      ends_.emplace(free.offset, free.end());
  }

  // `extent` is free too: the run that it is then a part of.
  tier::Extent join(tier::Extent extent) {
    std::uint64_t begin = extent.offset;
    std::uint64_t end = extent.end();
    auto next = ends_.lower_bound(begin);
    if (next != ends_.end() && next->first == end) {
      end = next->second;
      next = ends_.erase(next);
    }
    if (next != ends_.begin() && std::prev(next)->second == begin) {
      --next;
      begin = next->first;
      ends_.erase(next);
    }
    ends_.emplace(begin, end);
    return {begin, end - begin};
  }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // by begin
};

// Of a copy that has the tensor's bytes, while none elsewhere is published: whether no other one has them.
inline bool is_only_one(const Session& session, Slot slot, const Tensor& tensor, Level level) {
  if ((tensor.valid & ~bit(level)) == 0 && !planted(Plant::kLastCopyDropped)) return true;
  return tensor.published == level && session.word(slot).dirty;
}

}  // namespace

// Whether the copy can go without a transfer.
bool EngineImpl::droppable(const Session& session, Slot slot, Level level) const {
  const Tensor& tensor = session.at(slot);
  if (!tensor.written || tensor.lost || !tensor.is_valid(level)) return true;
  if (tensor.published != Level::kNone && tensor.published != level) return !is_shown_where_gone(session, tensor);
  return !is_only_one(session, slot, tensor, level);
}

void EngineImpl::count_eviction(Tensor& tensor, Level level, EvictionReason reason) {
  ++tiers_[tier_index(tensor, level)].evictions[static_cast<std::size_t>(reason)];
  if (tensor.prefetched) ++prefetches_.wasted;
  tensor.prefetched = tensor.hinted = false;
}

// Gives up the copy at `level` of a tensor that may be moved. kDeferred: room below is being made, or a former daemon
// is not done there; try again at the session's next event. kRefused: leased or pinned.
EngineImpl::Eviction EngineImpl::evict(Session& session, Slot slot, Level level, EvictionReason reason, Urgency urgency,
                                       bool straight_home) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(may_move(tensor) && tensor.has(level) && level != home_level_);
  if (tensor.pinned == level) return Eviction::kRefused;
  if (tensor.published == level && leased(session, slot)) return Eviction::kRefused;
  Level target = home_level_;
  if (!droppable(session, slot, level) && level == Level::kDevice && home_level_ == Level::kBlock && !straight_home)
    if (lower_extent(session, slot, urgency, target) == Eviction::kDeferred) return Eviction::kDeferred;
  const auto has_to_wait = [&] {
    return former_at_work_ && target == Level::kBlock && !droppable(session, slot, level);
  };
  if (has_to_wait()) return Eviction::kDeferred;
  if (tensor.published == level && !claim(session, slot)) return Eviction::kRefused;
  if (has_to_wait()) {  // a client wrote a moment ago
    publish_best(session, slot);
    return Eviction::kDeferred;
  }
  const bool was_to_come = withdraw_clean(session, slot) && !tensor.is_valid(level);
  if (!was_to_come && reason != EvictionReason::kHint && reason != EvictionReason::kMove)
    plan_return(session, slot, level);
  if (droppable(session, slot, level)) {
    if (!was_to_come) count_eviction(tensor, level, reason);
    if (level == Level::kDevice) pass_below(session, slot);
    drop_copy(session, slot, level);
    publish_best(session, slot);
    return Eviction::kDropped;
  }
  place_of(session, tensor, level).leaving_bytes += tensor.extent_bytes();
  tensor.leaving = level;
  start(session, slot,
        {.session = session.id,
         .slot = slot,
         .activity = Activity::kEvicting,
         .from = level,
         .to = target,
         .reason = reason},
        urgency);
  return Eviction::kStarted;
}

// Where a dirty device copy goes: into memory if it has an extent there, or can get one without waiting for leases,
// else straight home. kDeferred: memory is on its way.
EngineImpl::Eviction EngineImpl::lower_extent(Session& session, Slot slot, Urgency urgency, Level& target) {
  Tensor& tensor = session.at(slot);
  if (memory_tier_ == SIZE_MAX) return Eviction::kStarted;
  const std::uint64_t bytes = tensor.extent_bytes();
  std::uint64_t offset = 0;
  if (!tensor.has(Level::kMemory)) {
    Place& memory = *session.places[memory_tier_];
    if (memory.space.largest_free_bytes() < bytes && (memory.adding_bytes > 0 || grow(session, memory_tier_)))
      return Eviction::kDeferred;
    if (!allocate_by_dropping(session, memory_tier_, bytes, offset)) {
      const std::uint64_t coming = memory.space.free_bytes() + memory.leaving_bytes;
      if (memory.leaving_bytes > 0 && coming >= bytes) {
        raise_leaving(session, memory_tier_, memory.leaving_bytes, urgency);
        return Eviction::kDeferred;
      }
      // Memory cannot be written back just now: the home itself may do better, and if not, whoever waits learns of it.
      if (memory.write_back_error) return Eviction::kStarted;
      const Eviction made = make_room_below(session, slot, coming, urgency);
      if (made != Eviction::kDropped) return made;
      if (!allocate_by_dropping(session, memory_tier_, bytes, offset)) return Eviction::kStarted;
    }
    add_copy(session, slot, memory_tier_, offset);
  }
  target = Level::kMemory;
  return Eviction::kStarted;
}

// Room in memory for a device's copy, of which `coming` bytes are free: by the policy's order; or, where there are
// enough but they lie apart, what stands between them moves, or goes, if it is used after the copy. kDropped: there is
// more of it. kStarted: there is none, and the copy goes straight home.
EngineImpl::Eviction EngineImpl::make_room_below(Session& session, Slot slot, std::uint64_t coming, Urgency urgency) {
  const Tensor& tensor = session.at(slot);
  const std::uint64_t bytes = tensor.extent_bytes();
  if (coming < bytes) {
    const Survey found = survey(session, memory_tier_, {.enough_bytes = bytes - coming});
    if (found.victim_bytes < bytes - coming) return Eviction::kStarted;
    bool started = false;
    for (const Slot victim : found.victims)
      started |= evict(session, victim, Level::kMemory, EvictionReason::kDemand, urgency, true) == Eviction::kStarted;
    return started ? Eviction::kDeferred : Eviction::kDropped;
  }
  if (join_free(session, memory_tier_, bytes)) return Eviction::kDeferred;
  const std::int64_t next_ns = place_of(session, tensor, Level::kDevice).policy->expected(slot).next_ns;
  if (!session.foreseen.plan || next_ns == kUnforeseen) return Eviction::kStarted;
  if (!clear_window(session, memory_tier_, bytes, {.used_after_ns = next_ns})) return Eviction::kStarted;
  return session.places[memory_tier_]->leaving_bytes > 0 ? Eviction::kDeferred : Eviction::kDropped;
}

// An extent, for the price of clean copies at most; none are given up in vain, since free bytes that lie apart are
// none. Nor is one that was brought by a plan which still wants it: what is not wanted for longer may be dirty.
bool EngineImpl::allocate_by_dropping(Session& session, std::size_t tier, std::uint64_t bytes, std::uint64_t& offset) {
  constexpr std::size_t kLooksMax = 1024;
  Place& place = *session.places[tier];
  const Level level = tiers_[tier].level;
  std::vector<Slot> clean;
  std::size_t looks = 0;
  std::optional<tier::Extent> enough;
  const auto allocated = [&] {
    const auto extent = place.space.allocate(bytes);
    if (extent) offset = extent->offset;
    return extent.has_value();
  };
  TERRACE_CHECK(level != home_level_);  // homes are there for good
  if (allocated()) return true;
  std::optional<FreeRuns> runs;
  const auto joined = [&](tier::Extent extent) {
    if (clean.size() == 1 && extent.bytes >= bytes) return extent;  // as where tensors are of one size
    if (!runs) runs.emplace(place.space);
    return runs->join(extent);
  };
  const auto is_wanted = [&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    return tensor.prefetched && tensor.published == level && place.policy->expected(slot).next_ns != kUnforeseen;
  };
  const auto look = [&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    const bool free = tensor.idle() && tensor.admission == 0 && tensor.pinned != level && tensor.mark != set_mark_ &&
                      !(tensor.published == level && (tensor.hinted || leased(session, slot)));
    const bool in_seam = tensor.offset[index(level)] >= tier::kSeamsBegin;  // its pages lie apart
    if (free && !in_seam && droppable(session, slot, level) && !is_wanted(slot)) {
      clean.push_back(slot);
      const tier::Extent run = joined(tensor.extent(level));
      if (run.bytes >= bytes) enough = run;
    }
    return !enough && ++looks < kLooksMax;
  };
  place.policy->offer_victims(std::ref(look));
  if (!enough) return false;
  for (const Slot slot : clean) {
    if (!enough->contains(session.at(slot).offset[index(level)])) continue;
    if (!droppable(session, slot, level)) continue;  // a client wrote meanwhile
    evict(session, slot, level, EvictionReason::kDemand, {mover::Class::kAwaitedWriteBack, kNever}, true);
  }
  return allocated();
}

void EngineImpl::on(const Request& request, const Evict& body) {
  const auto session = open_session(request.session);
  if (!session) return answer(request.id, std::unexpected(session.error()));
  const auto slots = find_all(**session, body.tensors);
  if (!slots) return answer(request.id, std::unexpected(slots.error()));
  revoke_prefetches(**session, *slots);
  for (const Slot slot : *slots) evict_for_hint(**session, slot);
  ++(*session)->events;
  stir(**session);
  answer(request.id, ReplyBody{Done{}});
}

void EngineImpl::evict_for_hint(Session& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  for (const Level level : {Level::kDevice, Level::kMemory}) {
    if (level == home_level_ || !tensor.has(level) || !may_move(tensor)) continue;
    if (tensor.published == Level::kDevice && level == Level::kMemory) continue;  // leased above
    evict(session, slot, level, EvictionReason::kHint, {mover::Class::kCleaning, kNever}, true);
  }
}

// Whether a write-back would make the copy clean: it is published, dirty, and nobody moves it.
bool EngineImpl::may_clean(const Session& session, Slot slot, const Tensor& tensor, Level level) const {
  if (tensor.published != level || !is_only_one(session, slot, tensor, level)) return false;  // as most looked at
  return tensor.idle() && tensor.admission == 0 && tensor.is_valid(level) && tensor.written && !tensor.lost &&
         !tensor.deleted && !is_gone(session, tensor);
}

// Writes a copy back that may be cleaned, while it stays. False: somebody writes it just now.
bool EngineImpl::start_clean(Session& session, Slot slot, Level level, Level target) {
  // It is dirty, so that no other copy counts; recorded before the word, which says so until now, forgets it.
  session.at(slot).valid = bit(level);
  touch(session, slot);
  commit();
  if (!begin_clean(session, slot)) return false;
  ++session.cleanings;
  start(session, slot,
        {.session = session.id, .slot = slot, .activity = Activity::kCleaning, .from = level, .to = target},
        {mover::Class::kCleaning, kNever});
  return true;
}

// Nothing is under way with it, but for a cleaning that was not handed down yet: nobody waits for that one.
bool EngineImpl::may_move(const Tensor& tensor) const {
  if (tensor.admission != 0) return false;
  return tensor.idle() || (tensor.activity == Activity::kCleaning && scheduler_.waits(TransferId{tensor.transfer}));
}

// Takes a cleaning back that was not handed down yet; that the copy is dirty stands in the record by now. False: there
// is none.
bool EngineImpl::withdraw_clean(Session& session, Slot slot) {
  const auto flight = withdraw(session, slot, Activity::kCleaning);
  if (!flight) return false;
  if (flight->to == Level::kBlock) write_budget_.give_back(now_, session.at(slot).extent_bytes());
  --session.cleanings;
  return true;
}

// The tensor is idle again, if what it does was not handed down yet.
std::optional<Flight> EngineImpl::withdraw(Session& session, Slot slot, Activity activity) {
  Tensor& tensor = session.at(slot);
  const TransferId transfer{tensor.transfer};
  if (tensor.activity != activity || !scheduler_.withdraw(transfer)) return std::nullopt;
  const Flight flight = *flights_.take(transfer);
  --session.transfers;
  tensor.activity = Activity::kIdle;
  tensor.transfer = 0;
  touch(session, slot);
  return flight;
}

// The same, where the tensor stays as it is: the room below that was to be filled is free.
void EngineImpl::give_up_clean(Session& session, Slot slot) {
  if (withdraw_clean(session, slot) && session.at(slot).admission == 0) rest(session, slot);
}

// The copies that would be given up next are kept clean once the tier is nearly full. Under a plan, which writes down
// itself, those in memory alone that it has go, and while nothing else is written; none where it has them lie evenly
// over the step. (What is in memory that may be lost does not wait for that: write_back.cc.)
void EngineImpl::clean(Session& session) {
  if (former_at_work_ || !write_budget_.allows_early(now_)) return;
  const foresight::Plan* const plan = session.foreseen.plan.get();
  for (const std::size_t tier : kept_clean_)
    if (plan == nullptr || (tiers_[tier].level == Level::kMemory && !plan->evenly)) clean_place(session, tier);
}

void EngineImpl::clean_place(Session& session, std::size_t tier) {
  constexpr std::uint32_t kCleaningsMax = 4;  // at a time, per session
  constexpr std::uint32_t kLooksMax = 64;     // copies looked at in one walk
  constexpr std::uint32_t kLooksAnEvent = 4;  // on average, where walks find less than could be begun
  Place& place = *session.places[tier];
  if (place.clean_pause > 0) {
    --place.clean_pause;
    return;
  }
  const Level level = tiers_[tier].level;
  const auto limit = static_cast<double>(limit_bytes(session, tier));
  const bool planned = session.foreseen.plan != nullptr;
  const double mark = planned ? 0 : limit * tiers_[tier].options.high_mark;
  if (session.cleanings >= kCleaningsMax || static_cast<double>(place.used_bytes()) <= mark) return;
  std::array<Slot, kCleaningsMax> cold{};
  const std::size_t cold_max = kCleaningsMax - session.cleanings;
  std::size_t found = 0;
  auto window = static_cast<std::int64_t>(std::ceil(limit - mark));
  std::uint32_t looks = 0;
  const auto look = [&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    if (planned && !place.policy->expected(slot).give_up) return false;
    if (planned && !session.foreseen.goes_on(slot)) return ++looks < kLooksMax;  // it is stale soon
    window -= static_cast<std::int64_t>(tensor.extent_bytes());
    const bool dirty = tensor.published == level && is_only_one(session, slot, tensor, level);  // as few are
    if (dirty && may_clean(session, slot, tensor, level) && !tensor.home_bad && tensor.pinned == Level::kNone)
      cold[found++] = slot;
    return window > 0 && ++looks < kLooksMax && found < cold_max;
  };
  place.policy->offer_victims(std::ref(look));
  if (found < cold_max) place.clean_pause = looks / kLooksAnEvent;
  for (const Slot slot : std::span(cold).first(found)) {
    const mover::Link link = link_between(session.at(slot), level, home_level_);
    if (scheduler_.queued(link) + (planned ? scheduler_.in_flight(link) : 0) > 0) return;
    start_clean(session, slot, level, home_level_);
  }
}

}  // namespace terrace::engine
