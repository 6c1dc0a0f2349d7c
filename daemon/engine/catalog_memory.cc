// SPDX-License-Identifier: Apache-2.0
#include "engine/catalog_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace::engine {
namespace {

// Address space; what is touched of it is what one input of the engine changes.
constexpr std::uint64_t kJournalBytes = 256 * kMiB;
constexpr std::uint64_t kNotesBytes = 64 * kMiB;

// An entry of the journal: the former bytes follow, rounded up to 8.
struct Former {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

struct CatalogMemory::Header {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t sessions_max;
  std::uint32_t tensors_per_session_max;
  std::uint32_t reserved;
  std::atomic<std::uint64_t> journal_used;  // bytes; 0: no change is under way
  std::atomic<std::uint64_t> notes_used;    // bytes
  NodeRecord node;
  std::array<TierRecord, kTiersMax> tiers;
  std::array<tier::Extent, kRetiredMax> retired;
};

namespace {

constexpr std::uint64_t kHeaderBytes = 64 * 1024;

}  // namespace

std::uint64_t CatalogMemory::bytes_needed(const CatalogShape& shape) {
  const std::uint64_t tensors = std::uint64_t{shape.sessions_max} * shape.tensors_per_session_max;
  return kHeaderBytes + kJournalBytes + kNotesBytes + align_up(shape.sessions_max * sizeof(SessionRecord), kPageBytes) +
         align_up(tensors * sizeof(TensorRecord), kPageBytes);
}

CatalogMemory::CatalogMemory(std::span<std::byte> memory, const CatalogShape& shape)
    : memory_(memory),
      shape_(shape),
      journal_(memory.subspan(kHeaderBytes, kJournalBytes)),
      notes_(memory.subspan(kHeaderBytes + kJournalBytes, kNotesBytes)) {
  static_assert(sizeof(Header) <= kHeaderBytes);
}

CatalogMemory CatalogMemory::format(std::span<std::byte> memory, const CatalogShape& shape) {
  TERRACE_CHECK(memory.size() >= bytes_needed(shape));
  CatalogMemory catalog(memory, shape);
  auto* header = new (memory.data()) Header{};
  header->version = kCatalogVersion;
  header->sessions_max = shape.sessions_max;
  header->tensors_per_session_max = shape.tensors_per_session_max;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header->magic = kCatalogMagic;
  return catalog;
}

Result<CatalogMemory> CatalogMemory::open(std::span<std::byte> memory, const CatalogShape& shape) {
  const auto bad = [](const std::string& what) {
    return fail(ErrorCode::kFailedPrecondition, "the catalog that a former daemon left: " + what);
  };
  if (memory.size() < kHeaderBytes + kJournalBytes + kNotesBytes)
    return bad(fmt::format("it has {} bytes, which is too short", memory.size()));
  CatalogMemory catalog(memory, shape);
  const Header& header = catalog.header();
  if (header.magic != kCatalogMagic) return bad("it does not begin as one does");
  if (header.version != kCatalogVersion)
    return bad(fmt::format("it is of version {}, this daemon reads version {}", header.version, kCatalogVersion));
  if (header.sessions_max != shape.sessions_max || header.tensors_per_session_max != shape.tensors_per_session_max)
    return bad(fmt::format(
        "it holds {} sessions of {} tensors, and limits.sessions_max and "
        "limits.tensors_per_session_max are {} and {}: configure those again, or discard it",
        header.sessions_max, header.tensors_per_session_max, shape.sessions_max, shape.tensors_per_session_max));
  if (memory.size() < bytes_needed(shape))
    return bad(fmt::format("it has {} bytes, and its shape needs {}", memory.size(), bytes_needed(shape)));
  if (header.journal_used > kJournalBytes || header.notes_used > kNotesBytes || header.node.retired_count > kRetiredMax)
    return bad("it is damaged: its journal is longer than there is room for");
  if (const auto undone = catalog.undo(); !undone) return bad(undone.error().message);
  return catalog;
}

CatalogMemory::Header& CatalogMemory::header() const { return *reinterpret_cast<Header*>(memory_.data()); }
const NodeRecord& CatalogMemory::node() const { return header().node; }
std::span<const TierRecord, kTiersMax> CatalogMemory::tiers() const { return header().tiers; }
std::span<const tier::Extent, kRetiredMax> CatalogMemory::retired() const { return header().retired; }

SessionRecord& CatalogMemory::session_at(std::size_t index) const {
  TERRACE_CHECK(index < shape_.sessions_max);
  return reinterpret_cast<SessionRecord*>(memory_.data() + kHeaderBytes + kJournalBytes + kNotesBytes)[index];
}

TensorRecord& CatalogMemory::tensor_at(std::size_t session, std::size_t slot) const {
  TERRACE_CHECK(session < shape_.sessions_max && slot < shape_.tensors_per_session_max);
  std::byte* first = memory_.data() + kHeaderBytes + kJournalBytes + kNotesBytes +
                     align_up(shape_.sessions_max * sizeof(SessionRecord), kPageBytes);
  return reinterpret_cast<TensorRecord*>(first)[session * shape_.tensors_per_session_max + slot];
}

const SessionRecord& CatalogMemory::session(std::size_t index) const { return session_at(index); }
const TensorRecord& CatalogMemory::tensor(std::size_t session, std::size_t slot) const {
  return tensor_at(session, slot);
}

void CatalogMemory::put(const NodeRecord& node) { change(&header().node, &node, sizeof node); }

void CatalogMemory::put(std::span<const TierRecord> tiers) {
  TERRACE_CHECK(tiers.size() <= kTiersMax);
  std::array<TierRecord, kTiersMax> all{};
  std::ranges::copy(tiers, all.begin());
  change(header().tiers.data(), all.data(), sizeof all);
}

void CatalogMemory::put_retired(std::size_t index, tier::Extent extent) {
  TERRACE_CHECK(index < kRetiredMax);
  change(&header().retired[index], &extent, sizeof extent);
}

void CatalogMemory::put(std::size_t index, const SessionRecord& session) {
  change(&session_at(index), &session, sizeof session);
}

void CatalogMemory::put(std::size_t session, std::size_t slot, const TensorState& state) {
  change(&tensor_at(session, slot).state, &state, sizeof state);
}

void CatalogMemory::put(std::size_t session, std::size_t slot, const TensorFacts& facts) {
  change(&tensor_at(session, slot).facts, &facts, sizeof facts);
}

// The former bytes first, then the length that makes them count, then the new bytes.
void CatalogMemory::change(void* target, const void* value, std::size_t bytes) {
  if (std::memcmp(target, value, bytes) == 0) return;
  Header& own = header();
  const std::uint64_t used = own.journal_used.load(std::memory_order_relaxed);
  const std::uint64_t entry = sizeof(Former) + align_up(bytes, 8);
  TERRACE_CHECK(used + entry <= journal_.size());
  const Former former{static_cast<std::uint64_t>(static_cast<std::byte*>(target) - memory_.data()), bytes};
  std::memcpy(journal_.data() + used, &former, sizeof former);
  std::memcpy(journal_.data() + used + sizeof former, target, bytes);
  if (between_stores) between_stores();
  own.journal_used.store(used + entry, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // not a word of the new before that
  store(target, value, bytes);
}

void CatalogMemory::store(void* target, const void* value, std::size_t bytes) {
  if (!between_stores) {
    std::memcpy(target, value, bytes);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return;
  }
  for (std::size_t at = 0; at < bytes; at += 8) {
    between_stores();
    std::memcpy(static_cast<std::byte*>(target) + at, static_cast<const std::byte*>(value) + at, 8);
  }
  between_stores();
}

void CatalogMemory::commit() {
  if (between_stores) between_stores();
  header().journal_used.store(0, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (between_stores) between_stores();
}

// Backwards, so that what was changed twice ends as it was before the first time.
Result<void> CatalogMemory::undo() {
  std::vector<std::uint64_t> entries;
  const std::uint64_t used = header().journal_used.load(std::memory_order_acquire);
  for (std::uint64_t at = 0; at < used;) {
    Former former;
    std::memcpy(&former, journal_.data() + at, sizeof former);
    if (former.bytes > used - at || former.offset > memory_.size() || former.bytes > memory_.size() - former.offset)
      return fail(ErrorCode::kFailedPrecondition, "it is damaged: its journal names what is not there");
    entries.push_back(at);
    at += sizeof former + align_up(former.bytes, 8);
  }
  for (auto at = entries.rbegin(); at != entries.rend(); ++at) {
    Former former;
    std::memcpy(&former, journal_.data() + *at, sizeof former);
    std::memcpy(memory_.data() + former.offset, journal_.data() + *at + sizeof former, former.bytes);
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header().journal_used.store(0, std::memory_order_release);
  return {};
}

std::uint64_t CatalogMemory::note(const GrantRecord& grant, std::span<const GrantedSlot> slots) {
  Header& own = header();
  const std::uint64_t used = own.notes_used.load(std::memory_order_relaxed);
  const std::uint64_t bytes = sizeof grant + slots.size_bytes();
  TERRACE_CHECK(used + bytes <= notes_.size());
  std::memcpy(notes_.data() + used, &grant, sizeof grant);
  if (!slots.empty()) std::memcpy(notes_.data() + used + sizeof grant, slots.data(), slots.size_bytes());
  if (between_stores) between_stores();
  own.notes_used.store(used + bytes, std::memory_order_release);
  if (between_stores) between_stores();
  return used;
}

void CatalogMemory::answering(std::uint64_t note, std::uint32_t position) {
  auto* grant = reinterpret_cast<GrantRecord*>(notes_.data() + note);
  grant->position = position;
  if (between_stores) between_stores();
  std::atomic_ref(grant->answering).store(1, std::memory_order_release);
}

void CatalogMemory::forget_notes() { header().notes_used.store(0, std::memory_order_release); }

void CatalogMemory::each_note(const std::function<void(const GrantRecord&, std::span<const GrantedSlot>)>& take) const {
  std::vector<const GrantRecord*> grants;
  const std::uint64_t used = header().notes_used.load(std::memory_order_acquire);
  for (std::uint64_t at = 0; at < used;) {
    grants.push_back(reinterpret_cast<const GrantRecord*>(notes_.data() + at));
    at += sizeof(GrantRecord) + grants.back()->count * sizeof(GrantedSlot);
  }
  for (auto grant = grants.rbegin(); grant != grants.rend(); ++grant)
    take(**grant, {reinterpret_cast<const GrantedSlot*>(*grant + 1), (*grant)->count});
}

}  // namespace terrace::engine
