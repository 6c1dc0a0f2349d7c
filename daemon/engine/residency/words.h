// SPDX-License-Identifier: Apache-2.0
// The engine's side of the lease words.
#pragma once

#include <cstdint>

#include "engine/residency/copies.h"
#include "engine/residency/holdings.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/values/planted.h"

namespace terrace::engine {

class Words {
 public:
  Words(Tiers& tiers, Records& records, Copies& copies) : tiers_(tiers), records_(records), copies_(copies) {}

  bool leased(const Holdings& session, Slot slot) const;
  bool claim(Holdings& session, Slot slot);
  void publish(Holdings& session, Slot slot, Level level);
  void publish(Holdings& session, Slot slot, Level level, SessionId to, shm::Mode mode);
  shm::Word shown_word(const Holdings& session, const Tensor& tensor, bool turn) const;
  static void show_nothing(Member& member, Slot slot, const Tensor& tensor);
  void unpublish(Holdings& session, Slot slot);
  void publish_best(Holdings& session, Slot slot);
  static void show_free(Holdings& session, Slot slot, std::uint32_t incarnation);
  void show_all(const Holdings& session, Member& member) const;
  bool share(Holdings& session, Slot slot);
  void note_torn(Holdings& session, Slot slot);
  bool begin_clean(Holdings& session, Slot slot);
  bool finish_clean(const Holdings& session, Slot slot) const;
  void want(Holdings& session, Slot slot);
  void unwant(Holdings& session, Handle handle);
  bool is_awaited(const Holdings& session, const Tensor& tensor) const;
  void show_wanted(Holdings& session, Slot slot);
  static void show_lent(Holdings& session, Slot slot, bool lent);
  // Whether of a copy that has the tensor's bytes, while none elsewhere is published, no other one has them.
  static bool is_only_one(const Holdings& session, Slot slot, const Tensor& tensor, Level level) {
    if ((tensor.valid & ~bit(level)) == 0 && !planted(Plant::kLastCopyDropped)) return true;
    return tensor.published == level && session.word(slot).dirty;
  }
  void show_torn(Holdings& session, Slot slot);
  // After a restore: lease counts and dirty are true in the word, everything else in the record.
  void settle(Holdings& session, Slot slot);
  // Of a tensor that one member of a share holds: that member is gone.
  void bereave(Holdings& session, Slot slot);
  // Whether the copy can go without a transfer.
  bool droppable(const Holdings& session, Slot slot, Level level) const;
  // Whether the copy keeps its place as long as its trainer likes.
  bool stays(const Holdings& session, Slot slot, Level level) const;

 private:
  static bool was_shared(const Member& holder, Slot slot, const Tensor& tensor);
  void settle_shared(Holdings& session, Slot slot);

  Tiers& tiers_;
  Records& records_;
  Copies& copies_;
};

}  // namespace terrace::engine
