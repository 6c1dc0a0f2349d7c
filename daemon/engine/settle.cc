// SPDX-License-Identifier: Apache-2.0
// After a restore: what nobody was told of is undone, and words and records are brought together again.
#include "engine/restorer.h"

#include <algorithm>

#include "engine/values/planted.h"

namespace terrace::engine {

// Leases that their trainer was not told of end; tensors that it was not told of go.
std::map<SessionId, Unanswered> Restorer::undo_unanswered(std::span<const Survivor> survivors) {
  std::map<SessionId, Unanswered> unanswered;
  catalog_.each_note([&](const GrantRecord& grant, std::span<const GrantedSlot> slots) {
    const auto survivor = std::ranges::find(survivors, SessionId{grant.session}, &Survivor::session);
    Session* session = sessions_.find_session(SessionId{grant.session});
    if (session == nullptr || survivor == survivors.end()) return;
    Member* member = session->find_member(SessionId{grant.session});
    if (member == nullptr) return;
    const auto beyond = static_cast<std::int32_t>(survivor->completions - grant.position);
    if (grant.answering != 0 && beyond >= 0) return;
    if (grant.kind == GrantRecord::Kind::kStep && session->step != 0 &&
        static_cast<std::uint32_t>(session->step) == grant.value) {
      --session->step;
      --ledger_.steps;
    }
    for (const GrantedSlot& granted : slots) {
      if (granted.slot >= session->tensors.size()) continue;
      const Slot slot{granted.slot};
      const Tensor& tensor = session->at(slot);
      if (!tensor.live()) continue;
      if (grant.kind == GrantRecord::Kind::kTensors) {
        if (!tensor.deleted && tensor.incarnation == granted.mark) unanswered[session->id].created.push_back(slot);
      } else {
        const auto lease = GrantedLease::unpack(granted.mark);
        const bool undone = shm::ungrant(member->table.word(slot), lease.mode, lease.turn);
        // Its content was given up with the record, which comes before the word.
        const bool its = !session->is_share() || tensor.holder == member->id;  // and not another one's, as before
        const bool recorded = its && index(session->at(slot).published) == grant.value;
        if ((undone || recorded) && lease.mode == shm::Mode::kOverwrite && lease.fresh)
          unanswered[session->id].torn.push_back(slot);
      }
    }
  });
  return unanswered;
}

// The words and the records of one session are brought together again; then nothing of it is under way, but what a
// former daemon's reads may land in.
// (Slots from there on were never used: whoever gets one sets its word.)
void Restorer::settle(Session& session, const Unanswered& unanswered) {
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (tensor.live())
      words_.settle(session, Slot{at});
    else
      words_.show_free(session, Slot{at}, tensor.incarnation);
  }
  for (const Slot slot : unanswered.torn) tensors_.tear(session, slot);
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !tensor.idle()) continue;
    if (tensor.sliding == Level::kDevice && tiers_.is_gone(session, tensor)) {
      copies_.lose_if_gone(session, Slot{at});
      transfers_.slid(session, Slot{at}, {});  // only the books change
    } else if (tensor.sliding == Level::kDevice && tiers_.is_gone_at(session, tensor, tensor.slide().offset)) {
      transfers_.slid(session, Slot{at},
                      fail(ErrorCode::kUnavailable, tiers_[TierId{tensor.device}].loss));  // it stays where it is
    } else if (tensor.sliding != Level::kNone) {
      transfers_.slide_on(session, Slot{at});
      transfers_.give_up_gone(session, Slot{at});  // its copy in a device, while that in memory slides
    } else if (!tensor.deleted) {
      transfers_.rest(session, Slot{at});
    }
  }
  for (const Slot slot : unanswered.created)
    if (session.at(slot).live() && !session.at(slot).deleted) tensors_.delete_tensor(session, slot);
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !tensor.deleted || std::ranges::find(session.leaving, Slot{at}) != session.leaving.end())
      continue;
    if (!lives_.try_finish_delete(session, Slot{at})) {
      words_.want(session, Slot{at});
      session.leaving.push_back(Slot{at});
    }
  }
}

}  // namespace terrace::engine
