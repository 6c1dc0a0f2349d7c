// SPDX-License-Identifier: Apache-2.0
// Transfers go down to the scheduler and come back as outcomes.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine_impl.h"
#include "engine/values/planted.h"

namespace terrace::engine {
namespace {

// Unlike bytes that came, and were not those that were written.
bool is_of_the_device(const Error& error) { return error.code != ErrorCode::kDataLoss || error.system_error != 0; }

}  // namespace

std::vector<mover::Link> EngineImpl::links() const {
  std::vector<mover::Link> all;
  for (const Tier& tier : tiers_) {
    if (tier.level == Level::kDevice && tiers_.size() > 1) {
      all.push_back({mover::LinkKind::kHostToDevice, tier.unit});
      all.push_back({mover::LinkKind::kDeviceToHost, tier.unit});
    }
    if (tier.level == Level::kBlock) {
      all.push_back({mover::LinkKind::kBlockRead, 0});
      all.push_back({mover::LinkKind::kBlockWrite, 0});
    }
  }
  all.push_back({mover::LinkKind::kMemcpy, 0});
  return all;
}

mover::Link EngineImpl::link_between(const Tensor& tensor, Level from, Level to) const {
  if (to == Level::kBlock) return {mover::LinkKind::kBlockWrite, 0};
  if (from == Level::kNone || from == to) return {mover::LinkKind::kMemcpy, 0};
  if (from == Level::kBlock) return {mover::LinkKind::kBlockRead, 0};
  const std::uint8_t unit = tiers_[tensor.device].unit;
  return {to == Level::kDevice ? mover::LinkKind::kHostToDevice : mover::LinkKind::kDeviceToHost, unit};
}

void EngineImpl::start(Session& session, Slot slot, Flight flight, Urgency urgency) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.idle() && tensor.transfer == 0);
  mover::Transfer transfer;
  transfer.id = TransferId{next_transfer_++};
  transfer.link = link_between(tensor, flight.from, flight.to);
  transfer.urgency = urgency.urgency;
  transfer.deadline = urgency.deadline;
  transfer.prove = flight.activity == Activity::kProving;
  transfer.zero_fill = flight.from == Level::kNone && !transfer.prove;
  transfer.tensor = tensor.number;
  if (flight.to == Level::kBlock) ++tensor.version;
  transfer.version = tensor.version;
  transfer.bytes = tensor.bytes;
  if (flight.to == Level::kBlock) write_budget_.spend(now_, tensor.extent_bytes());
  transfer.to = location(session, tensor, flight.to);
  transfer.from = flight.from == Level::kNone ? transfer.to : location(session, tensor, flight.from);
  if (flight.activity == Activity::kSliding) {
    transfer.bytes = std::min(flight.step_bytes, tensor.bytes - tensor.slide().bytes);
    const std::uint64_t old = tensor.offset[index(flight.from)];
    transfer.from.pieces = tier::Pieces({old + tensor.slide().bytes, flight.step_bytes});
    transfer.to.pieces = tier::Pieces({tensor.slide().offset + tensor.slide().bytes, flight.step_bytes});
  }
  if (flight.to == Level::kBlock) tensor.valid &= static_cast<std::uint8_t>(~bit(Level::kBlock));
  if (planted(Plant::kCleanBeforeCompletion) && flight.to == Level::kBlock) tensor.valid |= bit(flight.to);
  if (planted(Plant::kZeroFillSkipped)) transfer.zero_fill = false;
  touch(session, slot);
  tensor.activity = flight.activity;
  tensor.transfer = static_cast<std::uint64_t>(transfer.id);
  flight.link = transfer.link;
  flight.bytes = transfer.bytes;
  flights_.add(transfer.id, flight);
  ++session.transfers;
  scheduler_.push(session.tenant, session.id, transfer);
}

void EngineImpl::transfer_done(Time now, const mover::TransferDone& done) {
  now_ = now;
  const auto taken = flights_.take(done.id);
  TERRACE_CHECK(taken.has_value());
  const Flight& flight = *taken;
  scheduler_.finished(flight.link, flight.bytes);
  LinkStatus& link = link_status_.at(flight.link);
  ++link.transfers;
  link.duration.record(now - flight.begun);
  if (done.result) link.bytes += flight.bytes;
  if (!done.result) {
    ++link.failures;
    count_failure(done.result.error(), done.failed);
  }
  Session* session = find_session(flight.session);
  TERRACE_CHECK(session != nullptr && session->transfers > 0);
  --session->transfers;
  ++session->events;
  stir(*session);
  opens_stirred_ = true;
  completed(*session, flight, done.result, done.failed);
  run();
}

void EngineImpl::count_failure(const Error& error, TierId failed) {
  if (terrace::index(failed) >= tiers_.size()) return;
  Tier& tier = tiers_[terrace::index(failed)];
  ++(is_of_the_device(error) ? tier.io_errors : tier.checksum_failures);
}

void EngineImpl::completed(Session& session, const Flight& flight, const Result<void>& result, TierId failed) {
  Tensor& tensor = session.at(flight.slot);
  touch(session, flight.slot);
  tensor.activity = Activity::kIdle;
  tensor.transfer = 0;
  tensor.leaving = Level::kNone;
  if (flight.activity == Activity::kCleaning) --session.cleanings;
  if (flight.activity == Activity::kEvicting)
    place_of(session, tensor, flight.from).leaving_bytes -= tensor.extent_bytes();
  if (session.life != Session::Life::kOpen) return;
  if (!result && terrace::index(failed) == block_tier_) block_failed(tensor, flight, result.error());
  switch (flight.activity) {
    case Activity::kFetching:
      return fetched(session, flight, result);
    case Activity::kEvicting:
      return evicted(session, flight, result);
    case Activity::kSliding:
      tensor.slide().bytes += result ? flight.step_bytes : 0;
      if (result && tensor.slide().bytes < tensor.extent_bytes()) return slide_on(session, flight.slot);
      return slid(session, flight.slot, result);
    case Activity::kCleaning:
      if (!result && flight.to == home_level_)
        tensor.home_bad = true;  // no more early ones until a write-back succeeds
      if (result && tensor.published == flight.from && finish_clean(session, flight.slot))
        tensor.valid |= bit(flight.to);
      if (result && flight.from == Level::kDevice) pass_below(session, flight.slot);
      if (result && flight.to == home_level_) tensor.home_bad = false;
      if (tensor.admission == 0) rest(session, flight.slot);
      if (flight.from == Level::kDevice) written_back(session, result.has_value());
      return;
    case Activity::kProving:  // if it failed, the region is retired by now
      if (tensor.admission == 0) rest(session, flight.slot);
      return;
    case Activity::kIdle:
    case Activity::kLanding:
      break;
  }
  TERRACE_CHECK(false);
}

// Where the device itself failed, or a proof, the region is not to be trusted again.
void EngineImpl::block_failed(Tensor& tensor, const Flight& flight, const Error& error) {
  if (flight.from == Level::kBlock && error.code == ErrorCode::kDataLoss) lose_copy(tensor, Level::kBlock);
  if (is_of_the_device(error) && !tensor.is_valid(Level::kBlock)) retire_home(tensor);
}

void EngineImpl::lose_copy(Tensor& tensor, Level level) {
  tensor.valid &= static_cast<std::uint8_t>(~bit(level));
  if (tensor.valid != 0 || !tensor.written || tensor.lost) return;
  tensor.lost = true;
  tensor.lost_in_device = level == Level::kDevice;
}

void EngineImpl::fetched(Session& session, const Flight& flight, const Result<void>& result) {
  Tensor& tensor = session.at(flight.slot);
  if (result) {
    tensor.valid |= bit(flight.to);
    const Admission* wanted = tensor.admission == 0 ? nullptr : find_admission(session, tensor.admission);
    if (wanted != nullptr && flight.from != Level::kNone && flight.to == tiers_[wanted->tier].level) {
      (wanted->planned ? foresight_.planned_bytes : foresight_.demanded_bytes) += flight.bytes;
      (wanted->planned ? session.foreseen.planned_bytes : session.foreseen.demanded_bytes) += flight.bytes;
    }
    return arrived(session, flight.slot);
  }
  if (result.error().code == ErrorCode::kDataLoss && flight.from != Level::kNone) lose_copy(tensor, flight.from);
  Error error = result.error();
  error.message = fmt::format("tensor '{}': {}", name(session, flight.slot), error.message);
  if (tensor.admission == 0) {
    rest(session, flight.slot);
  } else {
    Admission* admission = find_admission(session, tensor.admission);
    TERRACE_CHECK(admission != nullptr);
    fail_admission(session, *admission, std::move(error));
  }
  const bool mismatched = result.error().code == ErrorCode::kDataLoss && !is_of_the_device(result.error());
  if (mismatched && flight.from == Level::kBlock) prove_home(session, flight.slot);
}

// Bytes there were not those that were written. That says nothing of the device yet: whoever shares the memory may have
// written there while they were on their way. What comes back of a pattern of the daemon's own does.
void EngineImpl::prove_home(Session& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (!tensor.live() || tensor.deleted || !tensor.lost || !tensor.idle() || tensor.admission != 0) return;
  start(
      session, slot,
      {.session = session.id, .slot = slot, .activity = Activity::kProving, .from = Level::kNone, .to = Level::kBlock},
      {mover::Class::kAwaitedWriteBack, kNever});  // who writes the tensor again waits for it
}

void EngineImpl::evicted(Session& session, const Flight& flight, const Result<void>& result) {
  Tensor& tensor = session.at(flight.slot);
  if (result) {
    tensor.valid |= bit(flight.to);
    if (flight.to == Level::kBlock) tensor.home_bad = false;
    count_eviction(tensor, flight.from, flight.reason);
    if (flight.from == Level::kDevice) pass_below(session, flight.slot);
    drop_copy(session, flight.slot, flight.from);
  } else {
    Error error = result.error();
    error.message = fmt::format("writing back tensor '{}' failed, its bytes stay where they are: {}",
                                name(session, flight.slot), error.message);
    place_of(session, tensor, flight.from).write_back_error = std::move(error);
    session.write_back_failed = true;
  }
  rest(session, flight.slot);
}

void EngineImpl::slid(Session& session, Slot slot, const Result<void>& result) {
  Tensor& tensor = session.at(slot);
  const Level level = tensor.sliding;
  const std::size_t tier = tier_index(tensor, level);
  const tier::Extent old = tensor.extent(level);
  const Slide slide = tensor.end_slide();
  const tier::Extent fresh{slide.offset, old.bytes};
  const bool overlaps = fresh.offset < old.offset && fresh.end() > old.offset;
  touch(session, slot);
  if (result) {
    tensor.offset[index(level)] = fresh.offset;
    free_extent(session, tier, overlaps ? tier::Extent{fresh.end(), old.end() - fresh.end()} : old);
  } else {
    free_extent(session, tier, overlaps ? tier::Extent{fresh.offset, old.offset - fresh.offset} : fresh);
    if (slide.bytes > 0) lose_copy(tensor, level);  // the first step writes to nothing that it reads
  }
  rest(session, slot);
}

}  // namespace terrace::engine
