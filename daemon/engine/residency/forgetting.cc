// SPDX-License-Identifier: Apache-2.0
// Content that is given up, and pins that end.
#include "engine/residency/transfers.h"

namespace terrace::engine {

// Not if somebody leases it: a lease taken a moment ago is of somebody who does need it.
void Transfers::forget(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.published != Level::kNone && !words_.claim(session, slot)) return;
  tensor.forget = true;
  withdraw_clean(session, slot);
  records_.touch(session, slot);
  if (tensor.idle() && tensor.admission == 0) rest(session, slot);
}

bool Transfers::pinned_by(const Holdings& session, Slot slot, SessionId member) {
  const Tensor& tensor = session.at(slot);
  return tensor.pinned != Level::kNone && (!session.is_share() || tensor.pinner == member);
}

void Transfers::unpin(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  tensor.pinned = Level::kNone;
  tensor.pinner = SessionId{};
  records_.touch(session, slot);
  if (tensor.idle() && tensor.admission == 0) rest(session, slot);
}

}  // namespace terrace::engine
