// SPDX-License-Identifier: Apache-2.0
// One session's lease table as the engine uses it: a view of slots that live in the session's region (or, in tests and
// simulation, in plain memory). The engine never believes what it reads here about places; only about leases.
#pragma once

#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/ids.h"
#include "shm/layout.h"

namespace terrace::engine {

class LeaseTable {
 public:
  LeaseTable() = default;
  explicit LeaseTable(std::span<shm::TableSlot> slots) : slots_(slots) {}

  std::size_t size() const { return slots_.size(); }
  shm::AtomicWord& word(Slot slot) { return at(slot).word; }
  shm::Word load(Slot slot) const {
    TERRACE_CHECK(index(slot) < slots_.size());
    return shm::Word::unpack(slots_[index(slot)].word.load(std::memory_order_acquire));
  }
  // Sets where the copy is and then the word. Only in states in which no client may lease (see shm::publish).
  void publish(Slot slot, shm::Word word, std::uint32_t place, std::uint64_t offset, std::uint64_t bytes) {
    shm::TableSlot& entry = at(slot);
    entry.place = place;
    entry.offset = offset;
    entry.bytes = bytes;
    shm::publish(entry.word, word);
  }

 private:
  shm::TableSlot& at(Slot slot) {
    TERRACE_CHECK(index(slot) < slots_.size());
    return slots_[index(slot)];
  }

  std::span<shm::TableSlot> slots_;
};

}  // namespace terrace::engine
