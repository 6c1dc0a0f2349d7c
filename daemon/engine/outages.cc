// SPDX-License-Identifier: Apache-2.0
#include "engine/outages.h"

#include <fmt/format.h>

#include <optional>

namespace terrace::engine {
namespace {

// Of what was read from a home or written there; not of the pattern that a home is tried with, which says something of
// the home alone.
std::optional<Outage::Way> way_of(const Flight& flight) {
  if (flight.link.kind == mover::LinkKind::kBlockRead) return Outage::Way::kRead;
  if (flight.link.kind == mover::LinkKind::kBlockWrite && flight.activity != Activity::kProving)
    return Outage::Way::kWrite;
  return std::nullopt;
}

}  // namespace

void Outages::completed(Session& session, const Flight& flight, const mover::TransferDone& done) {
  const bool failed = !done.result && done.failed == tiers_.block;
  const std::optional<Outage::Way> way = way_of(flight);
  if (way && failed && is_of_the_device(done.result.error())) {
    const Outage::Verdict verdict =
        links_.outage.failed(turn_.now, *way, session.at(flight.slot).home()[0].offset, done.result.error());
    if (verdict == Outage::Verdict::kBegins) begin(session, flight);
  }
  if (way && done.result && links_.outage.succeeded(turn_.now, *way)) end();
  Result<void> result = done.result;
  // A device that fails wherever it is asked has not lost what it does not give now.
  if (failed && links_.outage.lasts() && flight.from == Level::kBlock && is_of_the_device(result.error()))
    result = fail(ErrorCode::kUnavailable,
                  fmt::format("{}; the block tier fails as a whole for now, and the bytes are not given up: ask again",
                              result.error().message),
                  result.error().system_error);
  outcomes_.completed(session, flight, result, done.failed);
  if (failed && links_.outage.withholds()) withhold();
}

void Outages::begin(Session& session, const Flight& flight) {
  turn_.output.outages.push_back({tiers_.block, true, links_.outage.why(), {}});
  Tensor& tensor = session.at(flight.slot);
  trials_.prepare(session.life == Session::Life::kOpen && !tensor.is_valid(Level::kBlock) ? &tensor : nullptr);
}

void Outages::tried(const Result<void>& result) {
  if (trials_.done(result)) end();
}

void Outages::end() {
  turn_.output.outages.push_back({tiers_.block, false, links_.outage.why(), turn_.now - links_.outage.since()});
  trials_.hurry();
  wakes_.all_changed();
  wakes_.opens = true;
}

// What was to be written and was not handed down yet has failed as the others did, so that nothing waits for it.
void Outages::withhold() {
  for (auto& [id, held] : registry_.all) {
    Session& session = session_of(*held);
    for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
      const TransferId transfer{session.at(Slot{at}).transfer};
      const Flight* const waits = links_.flights.find(transfer);
      if (waits == nullptr || waits->link.kind != mover::LinkKind::kBlockWrite) continue;
      if (!links_.scheduler.withdraw(transfer)) continue;
      const Flight flight = *links_.flights.take(transfer);
      links_.write_budget.give_back(turn_.now, flight.bytes);
      --session.transfers;
      wakes_.changed(session);
      outcomes_.completed(session, flight, std::unexpected(links_.outage.refusal("")), tiers_.block);
    }
  }
}

}  // namespace terrace::engine
