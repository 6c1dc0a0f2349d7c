// SPDX-License-Identifier: Apache-2.0
#include "engine/machine.h"

#include <algorithm>
#include <utility>

#include "engine/values/planted.h"

namespace terrace::engine {

Result<std::unique_ptr<Engine>> Engine::create(Options options, CatalogMemory& catalog) {
  if (const auto good = check(options, catalog.shape()); !good) return std::unexpected(good.error());
  auto engine = std::make_unique<StateMachine>(std::move(options), catalog);
  engine->begin_catalog();
  return engine;
}

Result<std::unique_ptr<Engine>> Engine::restore(Options options, CatalogMemory& catalog,
                                                std::span<const Survivor> survivors,
                                                std::span<const LostSegment> lost) {
  if (auto good = check(options, catalog.shape()); !good) return std::unexpected(good.error());
  auto engine = std::make_unique<StateMachine>(std::move(options), catalog);
  if (auto restored = engine->restore_from(survivors, lost); !restored) return std::unexpected(restored.error());
  return engine;
}

StateMachine::StateMachine(Options options, CatalogMemory& catalog) : options_(std::move(options)), catalog_(catalog) {
  links_.former_at_work = options_.former_at_work && tiers_.home_level == Level::kBlock;
  if (tiers_.home_level == Level::kBlock) {
    const std::uint64_t capacity = tiers_.home().options.capacity_bytes;
    block_.space.extend(capacity);
    block_.checksums.extend(tier::checksum_entries(capacity));
    block_.spare_bytes =
        align_down(static_cast<std::uint64_t>(static_cast<double>(capacity) * options_.spare_share), kPageBytes);
  }
  for (const mover::Link& link : tiers_.links()) links_.status[link].link = link;
  if (links_.former_at_work) transfers_.hold_block(true);
  ledger_.texts.extend(catalog_.texts_bytes());
}

void StateMachine::begin_catalog() {
  for (std::size_t record = 0; record < catalog_.shape().sessions_max; ++record) ledger_.free_records.insert(record);
  std::vector<TierRecord> records;
  for (const TierId tier : tiers_.ids()) records.push_back(tier_record(tiers_[tier].options));
  catalog_.put(records);
  records_.commit();
}

Result<void> StateMachine::restore_from(std::span<const Survivor> survivors, std::span<const LostSegment> lost) {
  if (auto restored = restorer_.restore_from(survivors, lost); !restored) return restored;
  run();
  return {};
}

void StateMachine::submit(Time now, Request request) {
  turn_.now = now;
  TERRACE_CHECK(requests_.find(request.id) == nullptr);
  std::visit([&]<typename B>(B&& body) { service_.on(request, std::forward<B>(body)); }, std::move(request.body));
  run();
}

void StateMachine::cancel(Time now, RequestId request) {
  turn_.now = now;
  const Waiting* const found = requests_.find(request);
  if (found == nullptr) return;
  Session* session = sessions_.find_session(found->session);
  const Error cancelled{ErrorCode::kCancelled, "the request was cancelled", 0};
  if (found->close) {
    session->find_member(found->session)->close_request.reset();
    requests_.answer(request, std::unexpected(cancelled));
  } else if (session != nullptr) {
    grants_.fail_admission(*session, queues_.demand_of(*session, request), cancelled);
  } else {
    std::erase_if(budget_.opens, [&](const PendingOpen& open) { return open.request == request; });
    wakes_.opens = true;
    requests_.answer(request, std::unexpected(cancelled));
  }
  run();
}

void StateMachine::lease_ended(Time now, SessionId id) {
  turn_.now = now;
  Session* session = sessions_.find_session(id);
  if (session != nullptr && !planted(Plant::kWaiterForgotten)) {
    wakes_.changed(*session);
    wakes_.opens = true;
  }
  run();
}

void StateMachine::accessed(Time now, SessionId id, std::span<const Access> accesses, std::uint64_t fast_leases) {
  turn_.now = now;
  Session* session = sessions_.find_session(id);
  if (session == nullptr || session->life != Session::Life::kOpen) return;
  TierId last_tier{};
  for (const Access& access : accesses) {
    if (index(access.slot) >= session->tensors.size()) continue;
    const Tensor& tensor = session->at(access.slot);
    if (!tensor.live() || tensor.published == Level::kNone) continue;
    last_tier = tiers_.tier_index(tensor, tensor.published);
    session->places[last_tier]->policy->used(access.slot, now);
    steps_.observe(*session, access.slot, access.mode, access.at == Time{} ? now : access.at, Duration::zero());
    steps_.follow(*session, access.slot);
    steps_.note_lease(*session, access.slot);
    if (fast_leases > 0) {
      ++tiers_[last_tier].leases.hits;
      --fast_leases;
    }
  }
  tiers_[last_tier].leases.hits += fast_leases;
  if (!session->foreseen.plan) return;
  wakes_.stir(*session);
  run();
}

void StateMachine::session_died(Time now, SessionId id) {
  turn_.now = now;
  if (Session* session = sessions_.find_session(id)) {
    if (session->life == Session::Life::kOpen)
      opening_.leave(*session, id, {ErrorCode::kAborted, "the session's process ended", 0});
  }
  run();
}

void StateMachine::tick(Time now) {
  turn_.now = now;
  cleaning_.look_for_write_backs();
  run();
}

Time StateMachine::next_deadline() const {
  const auto first = requests_.first_deadline();
  const Time deadline = std::min(first ? first->first : kNever, trials_.next());
  return cleaning_.awaits_write_backs() ? std::min(deadline, cleaning_.next_look()) : deadline;
}

void StateMachine::take_output(Output& output) {
  output.clear();
  const auto take = [](auto& to, auto& from) {
    if (!from.empty()) to.swap(from);  // few of them have something
  };
  take(output.replies, turn_.output.replies);
  take(output.transfers, turn_.output.transfers);
  take(output.segment_orders, turn_.output.segment_orders);
  take(output.gone, turn_.output.gone);
  take(output.pressure, turn_.output.pressure);
  take(output.observations, turn_.output.observations);
  take(output.losses, turn_.output.losses);
  take(output.outages, turn_.output.outages);
}

void StateMachine::run() {
  do {
    for (std::size_t i = 0; i < wakes_.stirred.size(); ++i)
      if (wakes_.stirred[i] != nullptr) pump(session_of(*wakes_.stirred[i]));
    wakes_.stirred.clear();
    if (wakes_.opens) {
      wakes_.opens = false;
      opening_.pump_opens();
    }
    if (wakes_.stirred.empty() && !wakes_.opens) expire();
  } while (!wakes_.stirred.empty() || wakes_.opens);
  trials_.look();
  records_.commit();
  const std::size_t before = turn_.output.transfers.size();
  links_.scheduler.dispatch(turn_.output.transfers);
  for (std::size_t i = before; i < turn_.output.transfers.size(); ++i)
    links_.flights.find(turn_.output.transfers[i].id)->begun = turn_.now;
  watch_pressure();
}

void StateMachine::pump(Session& session) {
  session.stirred = false;
  lives_.finish_leaving(session);
  if (session.life == Session::Life::kEnding) {
    const bool still = session.transfers == 0 || planted(Plant::kFreedInFlight);
    if (still && std::all_of(session.places.begin(), session.places.end(),
                             [](const auto& place) { return place == nullptr || place->adding_bytes == 0; }))
      opening_.finish_session(session);
    return;
  }
  transfers_.give_up_ended(session);
  reclaiming_.reclaim(session);
  for (std::uint64_t before = 0; before != session.events && !session.admissions.empty();) {
    before = session.events;
    admissions_.try_admissions(session, false);
    if (session.prefetches_running > 0) admissions_.try_admissions(session, true);
  }
  if (std::exchange(session.write_back_failed, false))
    for (const auto& place : session.places)
      if (place != nullptr) place->write_back_error.reset();  // nobody waited for it
  ahead_.start_prefetches(session);
  ahead_.foresee(session);
  cleaning_.clean(session);
}

void StateMachine::expire() {
  while (true) {
    const auto first = requests_.first_deadline();
    if (!first || first->first > turn_.now) return;
    const RequestId request = first->second;
    const Waiting waiting = *requests_.find(request);
    expire_one(request, waiting);
    TERRACE_CHECK(requests_.find(request) == nullptr);
  }
}

void StateMachine::expire_one(RequestId request, const Waiting& waiting) {
  Session* session = sessions_.find_session(waiting.session);
  if (waiting.close) {
    session->find_member(waiting.session)->close_request.reset();
    return requests_.answer(
        request, fail(ErrorCode::kDeadlineExceeded, "the session is closing, but its transfers are still under way"));
  }
  if (session == nullptr) {
    const auto open = std::find_if(budget_.opens.begin(), budget_.opens.end(),
                                   [&](const PendingOpen& o) { return o.request == request; });
    TERRACE_CHECK(open != budget_.opens.end());
    Error refusal = budget_.open_refusal(*open);
    if (links_.outage.lasts()) refusal.message += "; " + links_.outage.note();
    budget_.opens.erase(open);
    wakes_.opens = true;
    return requests_.answer(request, std::unexpected(refusal));
  }
  Admission& admission = queues_.demand_of(*session, request);
  grants_.fail_admission(*session, admission, grants_.expired(*session, admission));
}

void StateMachine::watch_pressure() {
  for (const TierId id : tiers_.ids()) {
    Tier& tier = tiers_[id];
    const bool above = tier.used_bytes > tier.high_mark_bytes;
    if (above == tier.above) continue;
    tier.above = above;
    turn_.output.pressure.push_back({id, above, tier.used_bytes, tier.options.capacity_bytes});
  }
}

void StateMachine::transfer_done(Time now, const mover::TransferDone& done) {
  turn_.now = now;
  const auto taken = links_.flights.take(done.id);
  TERRACE_CHECK(taken.has_value());
  const Flight& flight = *taken;
  links_.scheduler.finished(flight.link, flight.bytes);
  LinkStatus& link = links_.status.at(flight.link);
  ++link.transfers;
  link.duration.record(now - flight.begun);
  if (done.result) link.bytes += flight.bytes;
  if (!done.result) {
    ++link.failures;
    transfers_.count_failure(done.result.error(), done.failed);
  }
  if (Trials::is_one(flight)) {
    outages_.tried(done.result);
    return run();
  }
  Session* session = sessions_.find_session(flight.session);
  TERRACE_CHECK(session != nullptr && session->transfers > 0);
  --session->transfers;
  wakes_.changed(*session);
  wakes_.opens = true;
  outages_.completed(*session, flight, done);
  run();
}

void StateMachine::segment_done(Time now, const mover::SegmentDone& done) {
  turn_.now = now;
  Session* session = sessions_.find_session(done.order.session);
  if (session != nullptr) {
    const TierId tier = done.order.tier;
    Place& place = *session->places[tier];
    const std::uint64_t bytes = done.order.extent.bytes;
    if (done.order.kind == mover::SegmentOrder::Kind::kStitch) {
      Admission* const wanted = queues_.find_admission(*session, place.seams.at(done.order.extent.offset).made_for);
      if (!rooms_.stitched(*session, tier, done, wanted)) return run();  // others are still to come
    } else if (done.order.kind == mover::SegmentOrder::Kind::kAdd) {
      TERRACE_CHECK(place.adding_bytes == bytes);
      place.adding_bytes = 0;
      place.add_failed = !done.result;
      if (done.result) {
        place.space.extend(bytes);
        records_.touch(*session);
        if (place.fence != kNoFence) budget_.fence(*session, tier, place.fence);
      } else {
        place.add_error = done.result.error().message;
      }
    } else if (done.order.kind == mover::SegmentOrder::Kind::kRemove) {
      TERRACE_CHECK(place.removing_bytes >= bytes);
      place.removing_bytes -= bytes;
      if (!done.result) place.stuck_bytes += bytes;
      for (auto& [id, other] : registry_.all) other->places[tier]->add_failed = false;
      wakes_.all_changed();
    }
    wakes_.changed(*session);
    wakes_.opens = true;
  }
  run();
}

void StateMachine::plan(Time now, SessionId id, std::shared_ptr<const foresight::Plan> plan) {
  turn_.now = now;
  Session* session = sessions_.find_session(id);
  if (session != nullptr && session->life == Session::Life::kOpen && !session->is_share()) {
    steps_.take_plan(*session, std::move(plan));
  }
  run();
}

void StateMachine::tier_failed(Time now, TierId id, const Error& why) {
  turn_.now = now;
  Tier& tier = tiers_[id];
  TERRACE_CHECK(tier.level == Level::kDevice);
  if (std::exchange(tier.failed, true)) return;
  tier.loss = why.message;
  if (why.code == ErrorCode::kDataLoss) records_.record_loss(id, true);
  opening_.give_up_guarantees(id);
  for (auto& [number, session] : registry_.all)
    for (std::uint32_t at = 0; at < session->tensors.size(); ++at) transfers_.give_up_gone(*session, Slot{at});
  wakes_.all_changed();
  wakes_.opens = true;
  run();
}

void StateMachine::former_ended(Time now) {
  turn_.now = now;
  if (!links_.former_at_work) return;
  links_.former_at_work = false;
  transfers_.hold_block(false);
  for (auto& [id, session] : registry_.all)
    for (std::uint32_t at = 0; at < session->tensors.size(); ++at) transfers_.landed(*session, Slot{at});
  wakes_.all_changed();
  wakes_.opens = true;
  run();
}

}  // namespace terrace::engine
