// SPDX-License-Identifier: Apache-2.0
#include "engine/catalog/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "engine/values/planted.h"

namespace terrace::engine {
namespace {

constexpr std::uint64_t kNotesBytes = 64 * kMiB;

// An entry of the journal: the former bytes follow, rounded up to 8.
struct Former {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

std::unexpected<Error> bad(const std::string& what) {
  return fail(ErrorCode::kFailedPrecondition, "the catalog that a former daemon left: " + what);
}

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

std::uint64_t tensors_of(const CatalogShape& shape) {
  return std::uint64_t{shape.sessions_max} * shape.tensors_per_session_max;
}

template <typename Record>
std::uint64_t column_bytes(std::uint64_t count) {
  return align_up(count * sizeof(Record), kPageBytes);
}

const TensorRarities kNoRarities{};

}  // namespace

// The journal has room for every record at once, each changed once: address space, of which a change takes what it
// needs.
CatalogLayout::CatalogLayout(const CatalogShape& shape) : notes(kHeaderBytes), journal(notes + kNotesBytes) {
  const std::uint64_t tensors = tensors_of(shape);
  const std::uint64_t session_bytes = column_bytes<SessionRecord>(shape.sessions_max);
  const std::uint64_t state_bytes = column_bytes<TensorState>(tensors);
  const std::uint64_t facts_bytes = column_bytes<TensorFacts>(tensors);
  const std::uint64_t rarities_bytes = column_bytes<TensorRarities>(tensors);
  const std::uint64_t text_bytes = align_up(tensors * kTextBytesMax, kPageBytes);
  const std::uint64_t seam_bytes = column_bytes<SeamRecord>(shape.sessions_max * kSeamPiecesMax);
  const std::uint64_t records = seam_bytes + session_bytes + state_bytes + facts_bytes + rarities_bytes + text_bytes;
  const std::uint64_t entries = 4 * tensors + shape.sessions_max * (1 + kSeamPiecesMax);
  seams = journal + align_up(kHeaderBytes + records + entries * sizeof(Former), kPageBytes);
  sessions = seams + seam_bytes;
  states = sessions + session_bytes;
  facts = states + state_bytes;
  rarities = facts + facts_bytes;
  texts = rarities + rarities_bytes;
  end = texts + text_bytes;
}

std::uint64_t CatalogMemory::bytes_needed(const CatalogShape& shape) { return CatalogLayout(shape).end; }

CatalogMemory::CatalogMemory(std::span<std::byte> memory, const CatalogShape& shape)
    : memory_(memory),
      shape_(shape),
      layout_(shape),
      notes_(memory.subspan(layout_.notes, layout_.journal - layout_.notes)),
      journal_(memory.subspan(layout_.journal, layout_.seams - layout_.journal)) {
  static_assert(sizeof(Header) <= kHeaderBytes);
}

Result<AddressRange> CatalogMemory::map(const CatalogShape& shape) {
  const std::uint64_t bytes = align_up(bytes_needed(shape), kPageBytes);
  const auto memory = sealed_memfd("terrace-catalog", bytes);
  if (!memory) return std::unexpected(memory.error());
  return AddressRange::map(memory->get(), bytes, PROT_READ | PROT_WRITE);
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

std::optional<CatalogShape> CatalogMemory::shape_of(std::span<const std::byte> memory) {
  if (memory.size() < kHeaderBytes) return std::nullopt;
  const Header& header = *reinterpret_cast<const Header*>(memory.data());
  if (header.magic != kCatalogMagic || header.version != kCatalogVersion) return std::nullopt;
  const CatalogShape shape{header.sessions_max, header.tensors_per_session_max};
  // First that no sum of its layout wraps: every record lies in the memory.
  if (shape.sessions_max > memory.size() / sizeof(SessionRecord) ||
      tensors_of(shape) > memory.size() / sizeof(TensorState) || memory.size() != bytes_needed(shape))
    return std::nullopt;
  return shape;
}

Result<CatalogMemory::View> CatalogMemory::check(std::span<const std::byte> memory, const CatalogShape& shape) {
  if (memory.size() < kHeaderBytes) return bad(fmt::format("it has {} bytes, which is too short", memory.size()));
  const Header& header = *reinterpret_cast<const Header*>(memory.data());
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
  const std::byte* sessions = memory.data() + CatalogLayout(shape).sessions;
  return View{header.tiers, {reinterpret_cast<const SessionRecord*>(sessions), shape.sessions_max}};
}

Result<CatalogMemory> CatalogMemory::open(std::span<std::byte> memory, const CatalogShape& shape) {
  if (const auto fits = check(memory, shape); !fits) return std::unexpected(fits.error());
  const Header& header = *reinterpret_cast<const Header*>(memory.data());
  const CatalogLayout layout(shape);
  if (header.journal_used > layout.seams - layout.journal || header.notes_used > kNotesBytes ||
      header.node.retired_count > kRetiredMax)
    return bad("it is damaged: its journal, notes or retired regions are more than there is room for");
  CatalogMemory catalog(memory, shape);
  if (const auto sound = catalog.check_notes(); !sound) return bad(sound.error().message);
  const auto entries = catalog.check_journal();
  if (!entries) return bad(entries.error().message);
  catalog.undo(*entries);
  return catalog;
}

CatalogMemory::Header& CatalogMemory::header() const { return *reinterpret_cast<Header*>(memory_.data()); }
const NodeRecord& CatalogMemory::node() const { return header().node; }
std::span<const TierRecord, kTiersMax> CatalogMemory::tiers() const { return header().tiers; }
std::span<const tier::Extent, kRetiredMax> CatalogMemory::retired() const { return header().retired; }

std::span<const SeamRecord, kSeamPiecesMax> CatalogMemory::seams(std::size_t session) const {
  TERRACE_CHECK(session < shape_.sessions_max);
  return std::span<const SeamRecord, kSeamPiecesMax>(
      reinterpret_cast<const SeamRecord*>(memory_.data() + layout_.seams) + session * kSeamPiecesMax, kSeamPiecesMax);
}

SessionRecord& CatalogMemory::session_at(std::size_t index) const {
  TERRACE_CHECK(index < shape_.sessions_max);
  return reinterpret_cast<SessionRecord*>(memory_.data() + layout_.sessions)[index];
}

template <typename Record>
Record& CatalogMemory::tensor_at(std::uint64_t column, std::size_t session, std::size_t slot) const {
  TERRACE_CHECK(session < shape_.sessions_max && slot < shape_.tensors_per_session_max);
  auto* first = reinterpret_cast<Record*>(memory_.data() + column);
  return first[session * shape_.tensors_per_session_max + slot];
}

const SessionRecord& CatalogMemory::session(std::size_t index) const { return session_at(index); }

TensorRecord CatalogMemory::tensor(std::size_t session, std::size_t slot) const {
  const auto& state = tensor_at<TensorState>(layout_.states, session, slot);
  const auto& facts = tensor_at<TensorFacts>(layout_.facts, session, slot);
  const bool rare = (state.flags & kRare) != 0;
  const bool within = facts.text % kTextUnitBytes == 0 && facts.text <= texts_bytes() &&
                      facts.text_bytes() <= texts_bytes() - facts.text;
  const std::byte* text = memory_.data() + layout_.texts + (within ? facts.text : 0);
  return {.state = state,
          .facts = facts,
          .rarities = rare ? tensor_at<TensorRarities>(layout_.rarities, session, slot) : kNoRarities,
          .text = {text, within ? facts.text_bytes() : 0}};
}

template <typename Record>
void CatalogMemory::change(Record& target, const Record& value) {
  if (std::memcmp(&target, &value, sizeof value) != 0) replace(&target, &value, sizeof value);
}

void CatalogMemory::put(const NodeRecord& node) { change(header().node, node); }

void CatalogMemory::put(std::span<const TierRecord> tiers) {
  TERRACE_CHECK(tiers.size() <= kTiersMax);
  std::array<TierRecord, kTiersMax> all{};
  std::ranges::copy(tiers, all.begin());
  change(header().tiers, all);
}

void CatalogMemory::put_retired(std::size_t index, tier::Extent extent) {
  TERRACE_CHECK(index < kRetiredMax);
  change(header().retired[index], extent);
}

void CatalogMemory::put(std::size_t session, std::size_t index, const SeamRecord& piece) {
  TERRACE_CHECK(session < shape_.sessions_max && index < kSeamPiecesMax);
  change(reinterpret_cast<SeamRecord*>(memory_.data() + layout_.seams)[session * kSeamPiecesMax + index], piece);
}

void CatalogMemory::put(std::size_t index, const SessionRecord& session) { change(session_at(index), session); }

void CatalogMemory::put(std::size_t session, std::size_t slot, const TensorState& state,
                        const TensorRarities& rarities) {
  put(session, slot, state);
  if ((state.flags & kRare) == 0) return;
  change(tensor_at<TensorRarities>(layout_.rarities, session, slot), rarities);
}

void CatalogMemory::put(std::size_t session, std::size_t slot, const TensorState& state) {
  change(tensor_at<TensorState>(layout_.states, session, slot), state);
}

void CatalogMemory::put(std::size_t session, std::size_t slot, const TensorFacts& facts,
                        std::span<const std::byte> text) {
  TERRACE_CHECK(text.size() == facts.text_bytes() && text.size() <= kTextBytesMax);
  TERRACE_CHECK(facts.text % kTextUnitBytes == 0 && facts.text + text.size() <= texts_bytes());
  change(tensor_at<TensorFacts>(layout_.facts, session, slot), facts);
  std::byte* const place = memory_.data() + layout_.texts + facts.text;
  if (!std::ranges::equal(text, std::span(place, text.size()))) replace(place, text.data(), text.size());
}

// The former bytes first, then the length that makes them count, then the new bytes.
void CatalogMemory::replace(void* target, const void* value, std::size_t bytes) {
  if (planted(Plant::kJournalSkipped)) return store(target, value, bytes);
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

// Whether replace() has such a target: one whole record or text, and nothing of what the catalog itself goes by.
bool CatalogMemory::is_record(std::uint64_t offset, std::uint64_t bytes) const {
  const auto is_text = [&](std::uint64_t first, std::uint64_t size) {
    return first >= layout_.texts && first < layout_.end && (first - layout_.texts) % kTextUnitBytes == 0 && size > 0 &&
           size % kTextUnitBytes == 0 && size <= kTextBytesMax && size <= layout_.end - first;
  };
  const auto is_one_of = [&](std::uint64_t first, std::uint64_t size, std::uint64_t count) {
    return bytes == size && offset >= first && (offset - first) % size == 0 && (offset - first) / size < count;
  };
  const std::uint64_t tensors = tensors_of(shape_);
  return is_one_of(offsetof(Header, node), sizeof(NodeRecord), 1) ||
         is_one_of(offsetof(Header, tiers), sizeof(Header::tiers), 1) ||
         is_one_of(offsetof(Header, retired), sizeof(tier::Extent), kRetiredMax) ||
         is_one_of(layout_.seams, sizeof(SeamRecord), shape_.sessions_max * kSeamPiecesMax) ||
         is_one_of(layout_.sessions, sizeof(SessionRecord), shape_.sessions_max) ||
         is_one_of(layout_.states, sizeof(TensorState), tensors) ||
         is_one_of(layout_.facts, sizeof(TensorFacts), tensors) ||
         is_one_of(layout_.rarities, sizeof(TensorRarities), tensors) || is_text(offset, bytes);
}

// Where each of its entries begins.
Result<std::vector<std::uint64_t>> CatalogMemory::check_journal() const {
  const auto bad = [](std::uint64_t at) {
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("it is damaged: its journal has no change of a record at offset {}", at));
  };
  std::vector<std::uint64_t> entries;
  const std::uint64_t used = header().journal_used.load(std::memory_order_acquire);
  for (std::uint64_t at = 0; at < used;) {
    Former former;
    if (used - at < sizeof former) return bad(at);
    std::memcpy(&former, journal_.data() + at, sizeof former);
    if (!is_record(former.offset, former.bytes)) return bad(at);
    const std::uint64_t entry = sizeof former + align_up(former.bytes, 8);
    if (used - at < entry) return bad(at);
    if (former.offset == offsetof(Header, node)) {
      NodeRecord node;
      std::memcpy(&node, journal_.data() + at + sizeof former, sizeof node);
      if (node.retired_count > kRetiredMax) return bad(at);
    }
    entries.push_back(at);
    at += entry;
  }
  return entries;
}

// Backwards, so that what was changed twice ends as it was before the first time.
void CatalogMemory::undo(std::span<const std::uint64_t> entries) {
  for (auto at = entries.rbegin(); at != entries.rend(); ++at) {
    Former former;
    std::memcpy(&former, journal_.data() + *at, sizeof former);
    std::memcpy(memory_.data() + former.offset, journal_.data() + *at + sizeof former, former.bytes);
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header().journal_used.store(0, std::memory_order_release);
}

Result<void> CatalogMemory::check_notes() const {
  const std::uint64_t used = header().notes_used.load(std::memory_order_acquire);
  for (std::uint64_t at = 0; at < used;) {
    GrantRecord grant;
    const bool whole = used - at >= sizeof grant;
    if (whole) std::memcpy(&grant, notes_.data() + at, sizeof grant);
    if (!whole || grant.count > (used - at - sizeof grant) / sizeof(GrantedSlot) ||
        grant.kind < GrantRecord::Kind::kLeases || grant.kind > GrantRecord::Kind::kStep)
      return fail(ErrorCode::kFailedPrecondition,
                  fmt::format("it is damaged: its notes of answers have no note at offset {}", at));
    at += sizeof grant + grant.count * sizeof(GrantedSlot);
  }
  return {};
}

bool CatalogMemory::has_room_for_note(std::size_t slots) const {
  return sizeof(GrantRecord) + slots * sizeof(GrantedSlot) <=
         notes_.size() - header().notes_used.load(std::memory_order_relaxed);
}

std::uint64_t CatalogMemory::note(const GrantRecord& grant, std::span<const GrantedSlot> slots) {
  Header& own = header();
  const std::uint64_t used = own.notes_used.load(std::memory_order_relaxed);
  const std::uint64_t bytes = sizeof grant + slots.size_bytes();
  TERRACE_CHECK(has_room_for_note(slots.size()));
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
