// SPDX-License-Identifier: Apache-2.0
// A former daemon that was killed in the midst of reads and writes on the block tier: the system carries them out all
// the same, at any later moment, and what was read lands where that daemon wanted it. Until the last of them is done
// nothing is read or written there, what they may land in is given to nobody, and nothing is claimed or given up for
// the sake of what cannot be had yet. Everything else is served.
#include "engine/engine_impl.h"
#include "engine/values/planted.h"

namespace terrace::engine {

// By its record: the former daemon may have begun to read the tensor from the block tier, which is the only place that
// has its bytes. Its other extents are what it is read into. (It was recorded before any read began, and until all had
// ended; what a successor that was killed too found in this state it recorded in the same way.)
bool EngineImpl::may_still_land(const Tensor& tensor, const TensorState& was) const {
  constexpr std::uint8_t kMapped = bit(Level::kDevice) | bit(Level::kMemory);
  if (!former_at_work_ || planted(Plant::kFormerTargetReused)) return false;
  return (was.flags & kUnderWay) != 0 && tensor.written && tensor.sliding == Level::kNone &&
         tensor.valid == bit(Level::kBlock) && (tensor.extents & kMapped) != 0;
}

// Whether the admission would have the tensor read from the block tier, or written there.
bool EngineImpl::needs_block(const Admission& admission, const Tensor& tensor, shm::Mode mode) const {
  if (tiers_[admission.tier].level == Level::kBlock) return true;
  const bool overwrites = admission.is(Admission::Kind::kAcquire) && mode == shm::Mode::kOverwrite;
  return !overwrites && tensor.written && !tensor.lost && fastest_valid(tensor) == Level::kBlock;
}

void EngineImpl::hold_block(bool hold) {
  for (const mover::LinkKind kind : {mover::LinkKind::kBlockRead, mover::LinkKind::kBlockWrite})
    scheduler_.hold({kind, 0}, hold);
}

void EngineImpl::former_ended(Time now) {
  now_ = now;
  if (!former_at_work_) return;
  former_at_work_ = false;
  hold_block(false);
  for (auto& [id, session] : sessions_)
    for (std::uint32_t at = 0; at < session->tensors.size(); ++at) {
      Tensor& tensor = session->tensors[at];
      if (tensor.activity != Activity::kLanding) continue;
      tensor.activity = Activity::kIdle;
      touch(*session, Slot{at});
      rest(*session, Slot{at});
    }
  stir_all();
  opens_stirred_ = true;
  run();
}

}  // namespace terrace::engine
