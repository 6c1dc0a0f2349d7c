// SPDX-License-Identifier: Apache-2.0
// A copy slides to another extent of its tier.
#include "engine/residency/transfers.h"

#include <algorithm>

namespace terrace::engine {
// The new extent may overlap the old one; what of it does not is free.
void Transfers::start_slide(Holdings& session, Slot slot, Level level, std::uint64_t new_offset) {
  withdraw_clean(session, slot);
  Tensor& tensor = session.at(slot);
  Place& place = tiers_.place_of(session, tensor, level);
  tensor.begin_slide(level, {new_offset, 0});
  place.space.take({new_offset, slide_bytes(tensor, level)});
  if (tensor.is_valid(level)) return slide_on(session, slot);
  slid(session, slot, {});  // nothing is written there: only the books change
}

// One step: as much as does not overlap what it is read from, so that bytes are whole in one of the two places at any
// moment, and a successor can go on from there.
void Transfers::slide_on(Holdings& session, Slot slot) {
  const Tensor& tensor = session.at(slot);
  const std::uint64_t old = tensor.offset[index(tensor.sliding)];
  const std::uint64_t left = tensor.extent_bytes() - tensor.slide().bytes;
  const std::uint64_t apart = old > tensor.slide().offset ? old - tensor.slide().offset : left;
  start(session, slot,
        {.session = session.id,
         .slot = slot,
         .activity = Activity::kSliding,
         .from = tensor.sliding,
         .to = tensor.sliding,
         .step_bytes = std::min(left, apart)},
        {mover::Class::kAwaitedWriteBack, kNever});
}

void Transfers::slid(Holdings& session, Slot slot, const Result<void>& result) {
  Tensor& tensor = session.at(slot);
  const Level level = tensor.sliding;
  const TierId tier = tiers_.tier_index(tensor, level);
  const tier::Extent old = tensor.extent(level);
  const Slide slide = tensor.end_slide();
  const tier::Extent fresh{slide.offset, old.bytes};
  const bool overlaps = fresh.offset < old.offset && fresh.end() > old.offset;
  records_.touch(session, slot);
  if (result) {
    tensor.offset[index(level)] = fresh.offset;
    copies_.free_extent(session, tier, overlaps ? tier::Extent{fresh.end(), old.end() - fresh.end()} : old);
  } else {
    copies_.free_extent(session, tier, overlaps ? tier::Extent{fresh.offset, old.offset - fresh.offset} : fresh);
    if (slide.bytes > 0) copies_.lose_copy(tensor, level);  // the first step writes to nothing that it reads
  }
  rest(session, slot);
}

}  // namespace terrace::engine
