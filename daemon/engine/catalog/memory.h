// SPDX-License-Identifier: Apache-2.0
// The catalog's memory (DESIGN decision 8): records that outlive the daemon's process, and one undo journal, so that a
// change of many words happens as a whole or not at all, whenever the process ends. What a process wrote is there for
// its successor: a process's death, unlike a machine's, leaves memory coherent.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/mapping.h"
#include "engine/catalog/records.h"
#include "terrace/error.h"

namespace terrace::engine {

// How much the catalog holds.
struct CatalogShape {
  std::uint32_t sessions_max = 256;
  std::uint32_t tensors_per_session_max = 65536;
  bool operator==(const CatalogShape&) const = default;
};

// Where the records lie: an array of each kind, by session and then by slot, so that what few tensors need costs the
// others no page. Offsets in bytes from the catalog's begin, each on a page boundary.
struct CatalogLayout {
  explicit CatalogLayout(const CatalogShape& shape);
  std::uint64_t notes;
  std::uint64_t journal;
  std::uint64_t seams;
  std::uint64_t sessions;
  std::uint64_t states;
  std::uint64_t facts;
  std::uint64_t rarities;
  std::uint64_t texts;
  std::uint64_t end;
};

// All of one tensor's record. What its state and its facts do not speak of is not read: as it is in a new one.
struct TensorRecord {
  const TensorState& state;
  const TensorFacts& facts;
  const TensorRarities& rarities;
  std::span<const std::byte> text;  // empty: its facts speak of one that lies outside of the texts
};

class CatalogMemory {
 public:
  // Address space that a catalog of this shape needs; pages that were never touched cost nothing.
  static std::uint64_t bytes_needed(const CatalogShape& shape);

  // Memory for one, zeroed, in a memfd of this process alone.
  static Result<AddressRange> map(const CatalogShape& shape);
  // A fresh catalog in zeroed memory, page-aligned, of at least bytes_needed(). Borrowed.
  static CatalogMemory format(std::span<std::byte> memory, const CatalogShape& shape);
  // One that a former daemon left, with its last unfinished change undone. The memory may hold anything: whatever this
  // object goes by itself (journal, notes, counts) is checked here, what the records say by Engine::restore().
  // FailedPrecondition: it is of another version or shape, or damaged; nothing is changed then.
  static Result<CatalogMemory> open(std::span<std::byte> memory, const CatalogShape& shape);

  // Of a catalog that somebody may be changing just now: the tiers, which do not change, and the sessions as they are.
  struct View {
    std::span<const TierRecord, kTiersMax> tiers;
    std::span<const SessionRecord> sessions;
  };
  // The shape of what is a catalog of this version, in just the bytes that one of this shape needs: a shape that is
  // damaged is none.
  static std::optional<CatalogShape> shape_of(std::span<const std::byte> memory);
  // FailedPrecondition: it is of another version or shape.
  static Result<View> check(std::span<const std::byte> memory, const CatalogShape& shape);

  const CatalogShape& shape() const { return shape_; }
  const NodeRecord& node() const;
  std::span<const TierRecord, kTiersMax> tiers() const;
  std::span<const tier::Extent, kRetiredMax> retired() const;
  // By session, as the tensors.
  std::span<const SeamRecord, kSeamPiecesMax> seams(std::size_t session) const;
  const SessionRecord& session(std::size_t index) const;
  TensorRecord tensor(std::size_t session, std::size_t slot) const;
  // How many bytes of texts there can be: who writes them gives them out.
  std::uint64_t texts_bytes() const { return layout_.end - layout_.texts; }

  // Changes, in effect at once and undone at open() unless commit() came after them. What is equal already costs a
  // comparison.
  void put(const NodeRecord& node);
  void put(std::span<const TierRecord> tiers);
  void put_retired(std::size_t index, tier::Extent extent);
  void put(std::size_t session, std::size_t index, const SeamRecord& piece);
  void put(std::size_t index, const SessionRecord& session);
  // The rarities count if the state says so, and are not looked at otherwise.
  void put(std::size_t session, std::size_t slot, const TensorState& state, const TensorRarities& rarities);
  // Of a state that speaks of none.
  void put(std::size_t session, std::size_t slot, const TensorState& state);
  // `text`: of just the bytes that the facts say.
  void put(std::size_t session, std::size_t slot, const TensorFacts& facts, std::span<const std::byte> text);
  void commit();

  // Whether a note of so many slots finds room. Notes go when requests are answered.
  bool has_room_for_note(std::size_t slots) const;
  // Notes a request that takes effect, before it does. The note's number, for answering().
  std::uint64_t note(const GrantRecord& grant, std::span<const GrantedSlot> slots);
  // Its answer will be in the session's ring once the ring's tail is at `position`. Before the tail moves.
  void answering(std::uint64_t note, std::uint32_t position);
  // Whatever was noted is answered, or undone.
  void forget_notes();
  // Each note, the last one first.
  void each_note(const std::function<void(const GrantRecord&, std::span<const GrantedSlot>)>& take) const;

  // For tests: called between any two stores; may throw, which stands for the process's end at that point.
  std::function<void()> between_stores;

 private:
  struct Header;

  CatalogMemory(std::span<std::byte> memory, const CatalogShape& shape);
  Header& header() const;
  SessionRecord& session_at(std::size_t index) const;
  template <typename Record>
  Record& tensor_at(std::uint64_t column, std::size_t session, std::size_t slot) const;
  template <typename Record>
  void change(Record& target, const Record& value);
  void replace(void* target, const void* value, std::size_t bytes);
  void store(void* target, const void* value, std::size_t bytes);
  // Damage is named; nothing is changed.
  Result<void> check_notes() const;
  Result<std::vector<std::uint64_t>> check_journal() const;
  bool is_record(std::uint64_t offset, std::uint64_t bytes) const;
  void undo(std::span<const std::uint64_t> entries);

  std::span<std::byte> memory_;
  CatalogShape shape_;
  CatalogLayout layout_;
  std::span<std::byte> notes_;
  std::span<std::byte> journal_;
};

}  // namespace terrace::engine
