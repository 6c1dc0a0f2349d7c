// SPDX-License-Identifier: Apache-2.0
// Transfers go down to the scheduler; what they leave behind comes to rest.
#include "engine/residency/transfers.h"

#include <algorithm>
#include <optional>

#include "engine/values/planted.h"

namespace terrace::engine {
void Transfers::start(Holdings& session, Slot slot, Flight flight, Urgency urgency) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.idle() && tensor.transfer == 0);
  mover::Transfer transfer;
  transfer.id = TransferId{links_.next_transfer++};
  transfer.link = tiers_.link_between(tensor, flight.from, flight.to);
  transfer.urgency = urgency.urgency;
  transfer.deadline = urgency.deadline;
  transfer.prove = flight.activity == Activity::kProving;
  transfer.zero_fill = flight.from == Level::kNone && !transfer.prove;
  transfer.tensor = tensor.number;
  if (flight.to == Level::kBlock) ++tensor.version;
  transfer.version = tensor.version;
  transfer.bytes = tensor.bytes;
  if (flight.to == Level::kBlock) links_.write_budget.spend(turn_.now, tensor.extent_bytes());
  transfer.to = tiers_.location(session, tensor, flight.to);
  transfer.from = flight.from == Level::kNone ? transfer.to : tiers_.location(session, tensor, flight.from);
  if (flight.activity == Activity::kSliding) {
    transfer.bytes = std::min(flight.step_bytes, tensor.bytes - tensor.slide().bytes);
    const std::uint64_t old = tensor.offset[index(flight.from)];
    transfer.from.pieces = tier::Pieces({old + tensor.slide().bytes, flight.step_bytes});
    transfer.to.pieces = tier::Pieces({tensor.slide().offset + tensor.slide().bytes, flight.step_bytes});
  }
  if (flight.to == Level::kBlock) tensor.valid &= static_cast<std::uint8_t>(~bit(Level::kBlock));
  if (planted(Plant::kCleanBeforeCompletion) && flight.to == Level::kBlock) tensor.valid |= bit(flight.to);
  if (planted(Plant::kZeroFillSkipped)) transfer.zero_fill = false;
  if (flight.activity == Activity::kEvicting) {
    tensor.leaving = flight.from;
    tiers_.place_of(session, tensor, flight.from).leaving_bytes += tensor.extent_bytes();
  }
  records_.touch(session, slot);
  tensor.activity = flight.activity;
  tensor.transfer = static_cast<std::uint64_t>(transfer.id);
  flight.link = transfer.link;
  flight.bytes = transfer.bytes;
  links_.flights.add(transfer.id, flight);
  ++session.transfers;
  links_.scheduler.push(session.tenant, session.id, transfer);
}

// The tensor is idle again, if what it does was not handed down yet.
std::optional<Flight> Transfers::withdraw(Holdings& session, Slot slot, Activity activity) {
  Tensor& tensor = session.at(slot);
  const TransferId transfer{tensor.transfer};
  if (tensor.activity != activity || !links_.scheduler.withdraw(transfer)) return std::nullopt;
  const Flight flight = *links_.flights.take(transfer);
  --session.transfers;
  tensor.activity = Activity::kIdle;
  tensor.transfer = 0;
  records_.touch(session, slot);
  return flight;
}

// Takes a cleaning back that was not handed down yet; that the copy is dirty stands in the record by now. False: there
// is none.
bool Transfers::withdraw_clean(Holdings& session, Slot slot) {
  const auto flight = withdraw(session, slot, Activity::kCleaning);
  if (!flight) return false;
  if (flight->to == Level::kBlock) links_.write_budget.give_back(turn_.now, session.at(slot).extent_bytes());
  --session.cleanings;
  return true;
}

// The same, where the tensor stays as it is: the room below that was to be filled is free.
void Transfers::give_up_clean(Holdings& session, Slot slot) {
  if (withdraw_clean(session, slot) && session.at(slot).admission == 0) rest(session, slot);
}

// Nothing is under way with it, but for a cleaning that was not handed down yet: nobody waits for that one.
bool Transfers::may_move(const Tensor& tensor) const {
  if (tensor.admission != 0) return false;
  return tensor.idle() ||
         (tensor.activity == Activity::kCleaning && links_.scheduler.waits(TransferId{tensor.transfer}));
}

// Whether a write-back would make the copy clean: it is published, dirty, and nobody moves it.
bool Transfers::may_clean(const Holdings& session, Slot slot, const Tensor& tensor, Level level) const {
  if (tensor.published != level || !Words::is_only_one(session, slot, tensor, level))
    return false;  // as most looked at
  return tensor.idle() && tensor.admission == 0 && tensor.is_valid(level) && tensor.written && !tensor.lost &&
         !tensor.deleted && !tiers_.is_gone(session, tensor);
}

// Writes a copy back that may be cleaned, while it stays. False: somebody writes it just now.
bool Transfers::start_clean(Holdings& session, Slot slot, Level level, Level target) {
  // It is dirty, so that no other copy counts; recorded before the word, which says so until now, forgets it.
  session.at(slot).valid = bit(level);
  records_.touch(session, slot);
  records_.commit();
  if (!words_.begin_clean(session, slot)) return false;
  ++session.cleanings;
  start(session, slot,
        {.session = session.id, .slot = slot, .activity = Activity::kCleaning, .from = level, .to = target},
        {mover::Class::kCleaning, kNever});
  return true;
}

// Nobody moves the tensor any more: settles it into a state in which the fast path may serve it.
void Transfers::rest(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.idle() && tensor.admission == 0);
  if (session.life != Holdings::Life::kOpen) return;
  if (tensor.forget) copies_.drop_content(session, slot);
  if (tensor.published != Level::kDevice) copies_.lose_if_gone(session, slot);
  if (!tensor.written && tensor.published == Level::kNone) tensor.valid = 0;
  records_.touch(session, slot);
  for (const Level level : {Level::kDevice, Level::kMemory})
    if (tensor.has(level) && !tensor.is_valid(level) && tensor.published != level && level != tiers_.home_level &&
        tensor.pinned != level)
      copies_.drop_copy(session, slot, level);
  words_.publish_best(session, slot);
  wakes_.changed(session);
  if (tensor.published == Level::kDevice) give_up_gone(session, slot);  // it may have failed while this was on its way
}

void Transfers::count_failure(const Error& error, TierId failed) {
  if (terrace::index(failed) >= tiers_.size()) return;
  Tier& tier = tiers_[failed];
  ++(is_of_the_device(error) ? tier.io_errors : tier.checksum_failures);
}

// Where the device itself failed, or a proof, the region is not to be trusted again.
void Transfers::block_failed(Tensor& tensor, const Flight& flight, const Error& error) {
  if (flight.from == Level::kBlock && error.code == ErrorCode::kDataLoss) copies_.lose_copy(tensor, Level::kBlock);
  const bool of_the_region = is_of_the_device(error) && !links_.outage.lasts();
  if (of_the_region && !tensor.is_valid(Level::kBlock)) copies_.retire_home(tensor);
}

// Bytes there were not those that were written. That says nothing of the device yet: whoever shares the memory may have
// written there while they were on their way. What comes back of a pattern of the daemon's own does.
void Transfers::prove_home(Holdings& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (!tensor.live() || tensor.deleted || !tensor.lost || !tensor.idle() || tensor.admission != 0) return;
  if (links_.outage.withholds()) return;  // who writes the tensor again would wait for its end
  start(
      session, slot,
      {.session = session.id, .slot = slot, .activity = Activity::kProving, .from = Level::kNone, .to = Level::kBlock},
      {mover::Class::kAwaitedWriteBack, kNever});  // who writes the tensor again waits for it
}

void Transfers::hold_block(bool hold) {
  for (const mover::LinkKind kind : {mover::LinkKind::kBlockRead, mover::LinkKind::kBlockWrite})
    links_.scheduler.hold({kind, 0}, hold);
}

void Transfers::ended(Holdings& session, const Flight& flight) {
  Tensor& tensor = session.at(flight.slot);
  records_.touch(session, flight.slot);
  tensor.activity = Activity::kIdle;
  tensor.transfer = 0;
  tensor.leaving = Level::kNone;
  if (flight.activity == Activity::kCleaning) --session.cleanings;
  if (flight.activity == Activity::kEvicting)
    tiers_.place_of(session, tensor, flight.from).leaving_bytes -= tensor.extent_bytes();
}

void Transfers::landed(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.activity != Activity::kLanding) return;
  tensor.activity = Activity::kIdle;
  records_.touch(session, slot);
  rest(session, slot);
}

}  // namespace terrace::engine
