// SPDX-License-Identifier: Apache-2.0
// Sessions end, and members leave shares.
#include "engine/opening.h"

#include <algorithm>

#include "engine/values/planted.h"

namespace terrace::engine {

// A member ends: by its death, or because it closes. Nobody else's leases are touched; the last one takes the share
// with it.
void Opening::leave(Session& session, SessionId id, const Error& why) {
  if (!session.is_share() || session.members.size() == 1) return end_session(session, why);
  while (true) {
    const auto its = std::ranges::find(session.admissions, id, &Admission::member);
    if (its == session.admissions.end()) break;
    grants_.fail_admission(session, *its, why);
  }
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (tensor.live() && tensor.holder == id) bereave(session, Slot{at});
    if (tensor.live() && tensor.pinner == id) lives_.unpin(session, Slot{at});
  }
  const auto member = std::ranges::find(session.members, id, &Member::id);
  ledger_.freed_records.push_back(member->record);
  if (member->close_request) requests_.answer(*member->close_request, ReplyBody{Done{}});
  session.members.erase(member);
  registry_.part_of.erase(id);
  turn_.output.gone.push_back(id);
  wakes_.changed(session);  // its leases are over
  wakes_.opens = true;
}

// Its writer is gone.
void Opening::bereave(Session& session, Slot slot) {
  words_.bereave(session, slot);
  const Tensor& tensor = session.at(slot);
  if (tensor.torn)
    lives_.forget(session, slot);
  else if (tensor.idle() && tensor.admission == 0 && !tensor.deleted)
    transfers_.rest(session, slot);
}

void Opening::end_session(Session& session, const Error& why) {
  session.life = Session::Life::kEnding;
  records_.touch(session);
  while (!session.admissions.empty()) grants_.fail_admission(session, session.admissions.front(), why);
  session.prefetches.clear();
  for (const Tensor& tensor : session.tensors.all()) {
    const TransferId transfer{tensor.transfer};
    if (tensor.transfer == 0 || !links_.scheduler.withdraw(transfer)) continue;
    links_.flights.take(transfer);
    --session.transfers;
  }
  wakes_.stir(session);
}

// Nothing of it is under way any more: its bytes are free, its memory leaves with it.
void Opening::finish_session(Session& session) {
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    Tensor& tensor = session.at(Slot{at});
    if (!tensor.live()) continue;
    records_.free_text(session, Slot{at});
    for (const Level level : {Level::kDevice, Level::kMemory})
      if (tensor.has(level)) tiers_[tiers_.tier_index(tensor, level)].used_bytes -= tensor.extent_bytes();
    if (tensor.has(Level::kBlock)) copies_.free_home(tensor);
  }
  for (const auto& place : session.places)
    if (place != nullptr)
      for (const auto& [offset, seam] : place->seams) copies_.forget_records(session, seam);
  const SessionId id = session.id;
  ledger_.freed_records.push_back(session.record);
  for (const Member& member : session.members) {
    if (member.close_request) requests_.answer(*member.close_request, ReplyBody{Done{}});
    if (member.id == id) continue;
    ledger_.freed_records.push_back(member.record);
    registry_.part_of.erase(member.id);
    turn_.output.gone.push_back(member.id);
  }
  wakes_.forget(session);
  registry_.all.erase(id);
  turn_.output.gone.push_back(id);
  for (auto& [other, left] : registry_.all)
    for (auto& place : left->places)
      if (place != nullptr) place->add_failed = false;
  wakes_.opens = true;
  wakes_.all_changed();
}

}  // namespace terrace::engine
