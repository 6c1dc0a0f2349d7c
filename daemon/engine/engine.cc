// SPDX-License-Identifier: Apache-2.0
// The entrance: requests in, the loop that follows every input, deadlines.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/values/planted.h"

namespace terrace::engine {
void EngineImpl::submit(Time now, Request request) {
  now_ = now;
  TERRACE_CHECK(!waiting_.contains(request.id));
  std::visit([&]<typename B>(B&& body) { on(request, std::forward<B>(body)); }, std::move(request.body));
  run();
}

void EngineImpl::cancel(Time now, RequestId request) {
  now_ = now;
  const Waiting* const found = waiting_.find(request);
  if (found == nullptr) return;
  Session* session = find_session(found->session);
  const Error cancelled{ErrorCode::kCancelled, "the request was cancelled", 0};
  if (found->close) {
    session->find_member(found->session)->close_request.reset();
    answer(request, std::unexpected(cancelled));
  } else if (session != nullptr) {
    fail_admission(*session, demand_of(*session, request), cancelled);
  } else {
    std::erase_if(opens_, [&](const PendingOpen& open) { return open.request == request; });
    opens_stirred_ = true;
    answer(request, std::unexpected(cancelled));
  }
  run();
}

void EngineImpl::lease_ended(Time now, SessionId id) {
  now_ = now;
  Session* session = find_session(id);
  if (session != nullptr && !planted(Plant::kWaiterForgotten)) {
    ++session->events;
    stir(*session);
    opens_stirred_ = true;
  }
  run();
}

void EngineImpl::accessed(Time now, SessionId id, std::span<const Access> accesses, std::uint64_t fast_leases) {
  now_ = now;
  Session* session = find_session(id);
  if (session == nullptr || session->life != Session::Life::kOpen) return;
  std::size_t last_tier = 0;
  for (const Access& access : accesses) {
    if (index(access.slot) >= session->tensors.size()) continue;
    const Tensor& tensor = session->at(access.slot);
    if (!tensor.live() || tensor.published == Level::kNone) continue;
    last_tier = tier_index(tensor, tensor.published);
    session->places[last_tier]->policy->used(access.slot, now);
    observe(*session, access.slot, access.mode, access.at == Time{} ? now : access.at, Duration::zero());
    follow(*session, access.slot);
    note_lease(*session, access.slot);
    if (fast_leases > 0) {
      ++tiers_[last_tier].leases.hits;
      --fast_leases;
    }
  }
  tiers_[last_tier].leases.hits += fast_leases;
  if (!session->foreseen.plan) return;
  stir(*session);
  run();
}

void EngineImpl::session_died(Time now, SessionId id) {
  now_ = now;
  if (Session* session = find_session(id)) {
    if (session->life == Session::Life::kOpen)
      leave(*session, id, {ErrorCode::kAborted, "the session's process ended", 0});
  }
  run();
}

void EngineImpl::tick(Time now) {
  now_ = now;
  look_for_write_backs();
  run();
}

Time EngineImpl::next_deadline() const {
  const Time deadline = deadlines_.empty() ? kNever : deadlines_.begin()->first;
  return awaits_write_backs() ? std::min(deadline, next_look_) : deadline;
}

void EngineImpl::take_output(Output& output) {
  output.clear();
  const auto take = [](auto& to, auto& from) {
    if (!from.empty()) to.swap(from);  // few of them have something
  };
  take(output.replies, output_.replies);
  take(output.transfers, output_.transfers);
  take(output.segment_orders, output_.segment_orders);
  take(output.gone, output_.gone);
  take(output.pressure, output_.pressure);
  take(output.observations, output_.observations);
  take(output.losses, output_.losses);
}

void EngineImpl::stir(Session& session) {
  if (session.stirred) return;
  session.stirred = true;
  stirred_.push_back(&session);
}

void EngineImpl::stir_all() {
  for (auto& [id, session] : sessions_) {
    ++session->events;
    stir(*session);
  }
}

void EngineImpl::run() {
  do {
    for (std::size_t i = 0; i < stirred_.size(); ++i)
      if (stirred_[i] != nullptr) pump(*stirred_[i]);
    stirred_.clear();
    if (opens_stirred_) {
      opens_stirred_ = false;
      pump_opens();
    }
    if (stirred_.empty() && !opens_stirred_) expire();
  } while (!stirred_.empty() || opens_stirred_);
  commit();
  const std::size_t before = output_.transfers.size();
  scheduler_.dispatch(output_.transfers);
  for (std::size_t i = before; i < output_.transfers.size(); ++i) flights_.find(output_.transfers[i].id)->begun = now_;
  watch_pressure();
}

void EngineImpl::pump(Session& session) {
  session.stirred = false;
  finish_leaving(session);
  if (session.life == Session::Life::kEnding) {
    const bool still = session.transfers == 0 || planted(Plant::kFreedInFlight);
    if (still && std::all_of(session.places.begin(), session.places.end(),
                             [](const auto& place) { return place == nullptr || place->adding_bytes == 0; }))
      finish_session(session);
    return;
  }
  give_up_ended(session);
  reclaim(session);
  for (std::uint64_t before = 0; before != session.events && !session.admissions.empty();) {
    before = session.events;
    try_admissions(session, false);
    if (session.prefetches_running > 0) try_admissions(session, true);
  }
  if (std::exchange(session.write_back_failed, false))
    for (const auto& place : session.places)
      if (place != nullptr) place->write_back_error.reset();  // nobody waited for it
  start_prefetches(session);
  foresee(session);
  clean(session);
}

// In order of arrival; demands before prefetches.
void EngineImpl::try_admissions(Session& session, bool prefetches) {
  std::bitset<kTiersMax> closed;       // somebody earlier is making room there
  std::bitset<kTiersMax> planned_for;  // a plan is, which a request need not wait for
  for (auto at = session.admissions.begin(); at != session.admissions.end();) {
    Admission& admission = *at++;  // it may end
    if (admission.phase != Admission::Phase::kWaiting) continue;
    if (admission.is(Admission::Kind::kPrefetch) != prefetches) continue;
    if (admission.planned && session.awaited(false)[admission.tier]) continue;
    const std::size_t tier = admission.tier;
    const std::uint64_t id = admission.id;
    if (admission.seen_events != session.events && !room_is_coming(session, admission)) {
      admission.behind = closed[tier] || (admission.planned && planned_for[tier]);
      admission.seen_events = admission.behind ? 0 : session.events;
      try_start(session, admission);
      if (find_admission(session, id) == nullptr) continue;
    }
    // One that was created meanwhile would take bytes for good that this one has counted on.
    const bool keeps_order = admission.block == Admission::Block::kSpace ||
                             (admission.is(Admission::Kind::kCreate) && admission.block == Admission::Block::kLeases);
    if (admission.phase == Admission::Phase::kWaiting && keeps_order)
      (admission.planned ? planned_for : closed)[tier] = true;
  }
}

void EngineImpl::expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_) {
    const RequestId request = deadlines_.begin()->second;
    const Waiting waiting = *waiting_.find(request);
    expire_one(request, waiting);
    TERRACE_CHECK(!waiting_.contains(request));
  }
}

void EngineImpl::expire_one(RequestId request, const Waiting& waiting) {
  Session* session = find_session(waiting.session);
  if (waiting.close) {
    session->find_member(waiting.session)->close_request.reset();
    return answer(request,
                  fail(ErrorCode::kDeadlineExceeded, "the session is closing, but its transfers are still under way"));
  }
  if (session == nullptr) {
    const auto open =
        std::find_if(opens_.begin(), opens_.end(), [&](const PendingOpen& o) { return o.request == request; });
    TERRACE_CHECK(open != opens_.end());
    const Error refusal = open_refusal(*open);
    opens_.erase(open);
    opens_stirred_ = true;
    return answer(request, std::unexpected(refusal));
  }
  Admission& admission = demand_of(*session, request);
  fail_admission(*session, admission, expired(*session, admission));
}

void EngineImpl::watch_pressure() {
  for (Tier& tier : tiers_) {
    const bool above = tier.used_bytes > tier.high_mark_bytes;
    if (above == tier.above) continue;
    tier.above = above;
    const auto id = static_cast<TierId>(&tier - tiers_.data());
    output_.pressure.push_back({id, above, tier.used_bytes, tier.options.capacity_bytes});
  }
}

void EngineImpl::answer(RequestId request, Result<ReplyBody> result) {
  const auto waited = waiting_.take(request);
  if (waited && waited->deadline != kNever) deadlines_.erase({waited->deadline, request});
  constexpr std::uint64_t kOneIn = 31;
  const bool unlucky = static_cast<std::uint64_t>(request) % kOneIn == 0;
  if (planted(Plant::kReplyLost) && unlucky) return;
  if (planted(Plant::kReplyTwice) && unlucky) output_.replies.push_back({request, result});
  output_.replies.emplace_back(request, std::move(result));
}

bool EngineImpl::wait_for(RequestId request, SessionId session, Time deadline, bool close) {
  if (waiting_.size() >= options_.requests_waiting_max) {
    answer(request, fail(ErrorCode::kResourceExhausted,
                         fmt::format("{} requests wait already, which is the daemon's bound: try again later",
                                     waiting_.size())));
    return false;
  }
  waiting_.add(request, {session, deadline, close});
  if (deadline != kNever && !planted(Plant::kDeadlineForgotten)) deadlines_.emplace(deadline, request);
  return true;
}

// By its own number, or by that of a member of a share.
Session* EngineImpl::find_session(SessionId id) {
  if (!part_of_.empty())
    if (const auto part = part_of_.find(id); part != part_of_.end()) id = part->second;
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

Result<Session*> EngineImpl::open_session(SessionId id) {
  Session* session = find_session(id);
  if (session == nullptr || session->life != Session::Life::kOpen || session->find_member(id) == nullptr)
    return fail(ErrorCode::kNotFound,
                fmt::format("session {} is not open: open one first", static_cast<std::uint32_t>(id)));
  return session;
}

Result<std::size_t> EngineImpl::tier_of_place(std::uint32_t place, bool with_block) const {
  for (std::size_t i = 0; i < tiers_.size(); ++i)
    if (tiers_[i].place == place && (tiers_[i].mapped() || with_block)) return i;
  const std::string wanted = place == shm::kPlaceHost    ? "host"
                             : place == shm::kPlaceBlock ? "block"
                                                         : fmt::format("device:{}", place - shm::kPlaceDevice0);
  return fail(ErrorCode::kNotFound,
              fmt::format("there is no place {} here: this daemon has {}", wanted, place_names(with_block)));
}

std::string EngineImpl::place_names(bool with_block) const {
  std::string names;
  for (const Tier& tier : tiers_) {
    if (!tier.mapped() && !with_block) continue;
    names += (names.empty() ? "" : ", ") + tier.leases.name;
  }
  return names;
}

}  // namespace terrace::engine
