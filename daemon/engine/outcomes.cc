// SPDX-License-Identifier: Apache-2.0
#include "engine/outcomes.h"

#include <fmt/format.h>

namespace terrace::engine {
// It was not written because nothing is for now: nobody waits for it in vain, and it goes on later.
bool Outcomes::is_withheld(const Flight& flight, const Result<void>& result, TierId failed) const {
  return !result && failed == tiers_.block && flight.to == Level::kBlock && links_.outage.lasts();
}

void Outcomes::completed(Session& session, const Flight& flight, const Result<void>& result, TierId failed) {
  Tensor& tensor = session.at(flight.slot);
  transfers_.ended(session, flight);
  if (session.life != Session::Life::kOpen) return;
  if (!result && failed == tiers_.block) transfers_.block_failed(tensor, flight, result.error());
  switch (flight.activity) {
    case Activity::kFetching:
      return fetched(session, flight, result);
    case Activity::kEvicting:
      return evicted(session, flight, result, is_withheld(flight, result, failed));
    case Activity::kSliding:
      tensor.slide().bytes += result ? flight.step_bytes : 0;
      if (result && tensor.slide().bytes < tensor.extent_bytes()) return transfers_.slide_on(session, flight.slot);
      return transfers_.slid(session, flight.slot, result);
    case Activity::kCleaning:
      if (result && tensor.published == flight.from && words_.finish_clean(session, flight.slot))
        copies_.make_valid(session, flight.slot, flight.to);
      if (result && flight.from == Level::kDevice) steps_.pass_below(session, flight.slot);
      if (flight.to == tiers_.home_level && !is_withheld(flight, result, failed))
        copies_.mark_home(tensor, result.has_value());
      if (tensor.admission == 0) transfers_.rest(session, flight.slot);
      if (flight.from == Level::kDevice) cleaning_.written_back(session, result.has_value());
      return;
    case Activity::kProving:  // if it failed, the region is retired by now
      if (tensor.admission == 0) transfers_.rest(session, flight.slot);
      return;
    case Activity::kIdle:
    case Activity::kLanding:
      break;
  }
  TERRACE_CHECK(false);
}

void Outcomes::fetched(Session& session, const Flight& flight, const Result<void>& result) {
  Tensor& tensor = session.at(flight.slot);
  if (result) {
    copies_.make_valid(session, flight.slot, flight.to);
    const Admission* wanted = tensor.admission == 0 ? nullptr : queues_.find_admission(session, tensor.admission);
    if (wanted != nullptr && flight.from != Level::kNone && flight.to == tiers_[wanted->tier].level) {
      (wanted->planned ? counts_.foresight.planned_bytes : counts_.foresight.demanded_bytes) += flight.bytes;
      (wanted->planned ? session.foreseen.planned_bytes : session.foreseen.demanded_bytes) += flight.bytes;
    }
    return grants_.arrived(session, flight.slot);
  }
  if (result.error().code == ErrorCode::kDataLoss && flight.from != Level::kNone)
    copies_.lose_copy(tensor, flight.from);
  Error error = result.error();
  error.message = fmt::format("tensor '{}': {}", records_.name(session, flight.slot), error.message);
  if (tensor.admission == 0) {
    transfers_.rest(session, flight.slot);
  } else {
    Admission* admission = queues_.find_admission(session, tensor.admission);
    TERRACE_CHECK(admission != nullptr);
    grants_.fail_admission(session, *admission, std::move(error));
  }
  const bool mismatched = result.error().code == ErrorCode::kDataLoss && !is_of_the_device(result.error());
  if (mismatched && flight.from == Level::kBlock) transfers_.prove_home(session, flight.slot);
}

void Outcomes::evicted(Session& session, const Flight& flight, const Result<void>& result, bool withheld) {
  Tensor& tensor = session.at(flight.slot);
  if (result) {
    copies_.make_valid(session, flight.slot, flight.to);
    if (flight.to == Level::kBlock) copies_.mark_home(tensor, true);
    copies_.count_eviction(tensor, flight.from, flight.reason);
    if (flight.from == Level::kDevice) steps_.pass_below(session, flight.slot);
    copies_.drop_copy(session, flight.slot, flight.from);
  } else if (!withheld) {
    Error error = result.error();
    error.message = fmt::format("writing back tensor '{}' failed, its bytes stay where they are: {}",
                                records_.name(session, flight.slot), error.message);
    tiers_.place_of(session, tensor, flight.from).write_back_error = std::move(error);
    session.write_back_failed = true;
  }
  transfers_.rest(session, flight.slot);
}

}  // namespace terrace::engine
