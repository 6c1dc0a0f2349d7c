// SPDX-License-Identifier: Apache-2.0
// Memory of a device that is gone: of a GPU that failed, or a segment that a successor could not take back. A copy
// there counts for nothing as soon as nobody leases it (the last release rings): where another one is valid, that is
// the tensor, and else its content is lost. Nothing is moved from there or to there.
#include "engine/residency/transfers.h"

#include <utility>

namespace terrace::engine {

// What is leased or moves stands for now, and is looked at again when that has ended.
void Transfers::give_up_gone(Holdings& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  if (session.life != Holdings::Life::kOpen || !tensor.live() || tensor.deleted || !tiers_.is_gone(session, tensor))
    return;
  withdraw_clean(session, slot);  // it would fail
  const bool published = tensor.published == Level::kDevice;
  const bool at_rest = tensor.idle() && tensor.admission == 0;
  if (published && (!at_rest || !words_.claim(session, slot))) return await_gone(session, slot);
  if (!at_rest) return;
  const bool stays =
      tiers_.home_level == Level::kDevice || tensor.pinned == Level::kDevice;  // its extent, without its bytes
  if (stays && !tensor.is_valid(Level::kDevice)) return;
  rest(session, slot);
}

void Transfers::await_gone(Holdings& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  words_.show_lent(session, slot, true);
  words_.show_wanted(session, slot);
  session.gone.insert(slot);
  if (words_.leased(session, slot) || !tensor.idle() || tensor.admission != 0) return;
  wakes_.changed(session);  // the lease ended a moment ago, and did not ring
}

void Transfers::give_up_ended(Holdings& session) {
  if (session.gone.empty()) return;
  for (const Slot slot : std::exchange(session.gone, {})) give_up_gone(session, slot);
}

}  // namespace terrace::engine
