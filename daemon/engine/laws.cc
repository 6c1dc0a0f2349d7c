// SPDX-License-Identifier: Apache-2.0
// What clients scribble into their own tables is not held against the engine: only words that it wrote alone are
// compared.
#include "engine/laws.h"

#include <algorithm>
#include <cstring>

namespace terrace::engine {
namespace {

void check_disjoint(std::vector<tier::Extent>& extents) {
  std::sort(extents.begin(), extents.end());
  for (std::size_t i = 1; i < extents.size(); ++i) TERRACE_CHECK(extents[i - 1].end() <= extents[i].offset);
}

}  // namespace

void Laws::check(std::span<const SessionId> scribbled) const {
  for (const auto& [id, session] : registry_.all) {
    TERRACE_CHECK(session->id == id);
    check_session(session_of(*session), std::ranges::any_of(session->members, [&](const Member& member) {
                    return std::ranges::find(scribbled, member.id) != scribbled.end();
                  }));
  }
  check_block();
  check_catalog();
  check_texts();
  for (const TierId tier : tiers_.ids()) {
    if (!tiers_[tier].mapped()) continue;
    TERRACE_CHECK(budget_.claimed_bytes(tier) <= tiers_[tier].options.capacity_bytes);  // law 3
    std::uint64_t used = 0;
    for (const auto& [id, session] : registry_.all)
      for (const Tensor& tensor : session->tensors.all())
        if (tensor.live() && tiers_.at_tier(tensor, tier)) used += tensor.extent_bytes();
    TERRACE_CHECK(used == tiers_[tier].used_bytes);
  }
  // Law 6: whoever waits is known, and looked at by its deadline.
  std::size_t waiting = budget_.opens.size();
  for (const auto& [id, session] : registry_.all) {
    for (const Member& member : session->members) waiting += member.close_request.has_value() ? 1 : 0;
    for (const Admission& admission : session_of(*session).admissions) {
      if (admission.is(Admission::Kind::kPrefetch)) continue;
      TERRACE_CHECK(requests_.find(admission.request) != nullptr);
      ++waiting;
    }
  }
  TERRACE_CHECK(waiting == requests_.size());
  requests_.check_invariants();
  TERRACE_CHECK(wakes_.stirred.empty() && !wakes_.opens);
}

// What a successor would find is what is so.
void Laws::check_catalog() const {
  TERRACE_CHECK(records_.is_committed());
  for (const auto& [id, session] : registry_.all) {
    const SessionRecord record = records_.record_of(*session);
    TERRACE_CHECK(std::memcmp(&record, &catalog_.session(session->record), sizeof record) == 0);
    for (const Member& member : session->members) {
      const SessionRecord part = session->is_share() ? records_.record_of(*session, member) : record;
      TERRACE_CHECK(std::memcmp(&part, &catalog_.session(member.record), sizeof part) == 0);
    }
    if (session->life != Session::Life::kOpen) continue;
    for (std::size_t at = 0; at < session->tensors.size(); ++at) {
      const TensorRecord recorded = catalog_.tensor(session->record, at);
      const TensorState state = records_.state_of(*session, session->tensors[at]);
      TERRACE_CHECK(std::memcmp(&state, &recorded.state, sizeof state) == 0);
      const TensorRarities rarities = records_.rarities_of(session->tensors[at]);
      TERRACE_CHECK(!session->tensors[at].live() || std::memcmp(&rarities, &recorded.rarities, sizeof rarities) == 0);
    }
  }
}

// Each in a place of its own, and no place lost.
void Laws::check_texts() const {
  std::vector<tier::Extent> texts;
  std::uint64_t used = 0;
  for (const auto& [id, session] : registry_.all)
    for (std::uint32_t at = 0; at < session->tensors.size(); ++at) {
      if (!session->at(Slot{at}).live()) continue;
      const TensorFacts& facts = records_.recorded(*session, Slot{at}).facts;
      TERRACE_CHECK(facts.bytes == session->at(Slot{at}).bytes);
      texts.push_back({facts.text, facts.text_bytes()});
      used += facts.text_bytes();
    }
  check_disjoint(texts);
  TERRACE_CHECK(used == ledger_.texts.used_bytes());
}

void Laws::check_session(const Session& session, bool scribbled) const {
  std::size_t transfers = 0;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    transfers += tensor.transfer != 0 && links_.flights.contains(TransferId{tensor.transfer}) ? 1 : 0;
    if (!tensor.live()) continue;
    if (!tensor.deleted) {
      ++count;
      bytes += tensor.bytes;
      TERRACE_CHECK(session.names.find(records_.name(session, Slot{at}), records_.names_of(session)) == Slot{at});
    }
    if (session.life != Session::Life::kOpen) continue;
    check_tensor(session, Slot{at});
    if (!scribbled) check_word(session, Slot{at});
  }
  TERRACE_CHECK(transfers == session.transfers);
  TERRACE_CHECK(count == session.tensor_count && count == session.names.size() && bytes == session.tensor_bytes);
  check_places(session);
  if (!scribbled && session.life == Session::Life::kOpen)
    for (const TierId tier : tiers_.ids())
      if (tiers_[tier].options.stitches && session.places[tier]->gone.empty() && session.places[tier]->stuck_bytes == 0)
        check_guarantee(session, tier);
  // Law 6: whoever waits for room waits for something that is under way, and is looked at when it is done.
  const bool still =
      session.transfers == 0 &&
      std::ranges::all_of(
          session.places,
          [](const auto& place) {
            return place == nullptr ||
                   (place->adding_bytes == 0 && place->removing_bytes == 0 && place->stuck_bytes == 0 &&
                    std::ranges::all_of(place->seams, [](const auto& seam) { return seam.second.ready; }));
          }) &&
      registry_.all.size() == 1 && budget_.opens.empty();
  if (scribbled || !still || session.is_share() || !links_.may_write_home() || session.life != Session::Life::kOpen)
    return;
  for (const Admission& admission : session.admissions)
    TERRACE_CHECK(admission.planned || admission.phase != Admission::Phase::kWaiting ||
                  admission.block != Admission::Block::kSpace);
}

void Laws::check_tensor(const Session& session, Slot slot) const {
  const Tensor& tensor = session.at(slot);
  TERRACE_CHECK((tensor.valid & ~tensor.extents) == 0);
  TERRACE_CHECK(tensor.has(tiers_.home_level));
  // Law 2.
  TERRACE_CHECK(!tensor.written || tensor.lost || tensor.deleted || tensor.valid != 0);
  TERRACE_CHECK(!tensor.lost || tensor.valid == 0);
  const bool landing = tensor.activity == Activity::kLanding;
  TERRACE_CHECK((tensor.transfer != 0) == (!tensor.idle() && !landing));
  TERRACE_CHECK(!landing ||
                (links_.former_at_work && tensor.published == Level::kNone && tensor.valid == bit(Level::kBlock)));
  if (tensor.transfer != 0) TERRACE_CHECK(links_.flights.find(TransferId{tensor.transfer})->slot == slot);
  if (tensor.published != Level::kNone) TERRACE_CHECK(tensor.written && tensor.is_valid(tensor.published));
  // Law 4: what may be leased is touched by nothing but a write-back that reads it.
  if (tensor.published != Level::kNone && !tensor.idle())
    TERRACE_CHECK(links_.flights.find(TransferId{tensor.transfer})->to != tensor.published);
  if (tensor.pinned != Level::kNone) TERRACE_CHECK(tensor.has(tensor.pinned));
  TERRACE_CHECK((tensor.pinner != SessionId{}) == (session.is_share() && tensor.pinned != Level::kNone));
  // What is given up is nobody's to lease, and is gone as soon as nobody moves it.
  if (tensor.forget) TERRACE_CHECK(tensor.published == Level::kNone && (!tensor.idle() || tensor.admission != 0));
}

void Laws::check_word(const Session& session, Slot slot) const {
  const Tensor& tensor = session.at(slot);
  TERRACE_CHECK(tensor.holder == SessionId{} || tensor.published != Level::kNone);
  // A claimed tensor at rest would be out of reach for good.
  TERRACE_CHECK(tensor.published == Level::kNone || !tensor.claimed);
  for (const Member& member : session.members) {
    const shm::Word word = member.table.load(slot);
    TERRACE_CHECK(word.incarnation == tensor.incarnation);
    if (tensor.published == Level::kNone || !Session::shows(member, tensor)) {
      const bool may_be_claimed = tensor.claimed;  // by the words that showed it
      TERRACE_CHECK(word.state == shm::State::kAbsent || (may_be_claimed && word.state == shm::State::kClaimed));
      TERRACE_CHECK(session.is_share() || may_be_claimed == (word.state == shm::State::kClaimed));
      TERRACE_CHECK(!word.leased());
      continue;
    }
    const shm::State shown = session.is_shared(tensor) ? shm::State::kShared : shm::State::kResident;
    TERRACE_CHECK(word.state == shown);
    TERRACE_CHECK(shown != shm::State::kShared || word.writers == 0);
    TERRACE_CHECK(word.wanted == words_.is_awaited(session, tensor));
    TERRACE_CHECK(word.torn || !tensor.torn);
  }
}

void Laws::check_places(const Session& session) const {
  for (const TierId tier : tiers_.ids()) {
    if (!tiers_[tier].mapped()) continue;
    const Place& place = *session.places[tier];
    place.space.check_invariants();
    TERRACE_CHECK(budget_.fenced() || place.fence == kNoFence);
    const Level level = tiers_[tier].level;
    std::vector<tier::Extent> extents = place.fenced;
    std::uint64_t leaving = 0;
    std::size_t used_seams = 0;
    for (const Tensor& tensor : session.tensors.all()) {
      if (!tensor.live() || !tiers_.at_tier(tensor, tier)) continue;
      tier::Extent extent = tensor.extent(level);
      const auto flight = links_.flights.find(TransferId{tensor.transfer});
      if (tensor.activity == Activity::kSliding && flight != nullptr && flight->from == level) {
        const tier::Extent target{tensor.slide().offset, extent.bytes};
        if (target.end() > extent.offset && target.offset < extent.offset)
          extent = {target.offset, extent.end() - target.offset};
        else
          extents.push_back(target);
      }
      if (tensor.leaving == level) leaving += tensor.extent_bytes();
      if (extent.offset >= tier::kSeamsBegin) {
        const auto seam = place.seams.find(extent.offset);
        TERRACE_CHECK(seam != place.seams.end() && seam->second.used && seam->second.bytes == extent.bytes);
        ++used_seams;
        continue;
      }
      TERRACE_CHECK(extent.end() <= place.space.capacity_bytes());
      extents.push_back(extent);
    }
    if (session.life != Session::Life::kOpen) continue;
    TERRACE_CHECK(leaving == place.leaving_bytes);
    std::uint64_t idle = 0;
    for (const auto& [offset, seam] : place.seams) {
      std::uint64_t bytes = 0;
      for (const tier::Extent& piece : seam.pieces) bytes += piece.bytes;
      TERRACE_CHECK(bytes == seam.bytes && seam.records.size() == seam.pieces.size());
      idle += seam.used ? 0 : seam.bytes;
      TERRACE_CHECK(seam.used || !seam.ready ||
                    std::ranges::find(session.admissions, seam.made_for, &Admission::id) != session.admissions.end());
      if (seam.used) --used_seams;
      extents.insert(extents.end(), seam.pieces.begin(), seam.pieces.end());
    }
    TERRACE_CHECK(used_seams == 0 && idle == place.idle_bytes);  // each serves one copy
    check_disjoint(extents);
    std::uint64_t sum = 0;
    for (const tier::Extent& extent : extents) sum += extent.bytes;
    TERRACE_CHECK(sum == place.space.used_bytes());
    TERRACE_CHECK(place.space.capacity_bytes() % tiers_[tier].options.segment_bytes == 0);
  }
}

// A session can lease what its guarantee still has, in any of its tensors' sizes: were all to go that can, the largest
// that fits what is left would lie side by side, or in a seam of no more pieces than there can be.
void Laws::check_guarantee(const Session& session, TierId tier) const {
  const Place& place = *session.places[tier];
  std::uint64_t held_bytes = 0;
  std::size_t held_pieces = 0;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !tiers_.at_tier(tensor, tier) || !words_.stays(session, Slot{at}, tiers_[tier].level))
      continue;
    held_bytes += tensor.extent_bytes();
    const auto seam = place.seams.find(tensor.offset[index(tiers_[tier].level)]);
    if (seam != place.seams.end()) held_pieces += seam->second.pieces.size();
  }
  if (held_bytes >= place.floor_bytes) return;
  std::uint64_t largest = 0;
  for (const Tensor& tensor : session.tensors.all())
    if (tensor.live() && !tensor.deleted && tensor.extent_bytes() <= place.floor_bytes - held_bytes)
      largest = std::max(largest, tensor.extent_bytes());
  const std::vector<std::uint64_t> runs = windows_.runs_at_best(session, tier);
  if (largest <= runs.front()) return;
  TERRACE_CHECK(rooms_.can_stitch(tier));
  std::uint64_t bytes = 0;
  std::size_t pieces = 0;
  while (bytes < largest && pieces < runs.size()) bytes += runs[pieces++];
  TERRACE_CHECK(bytes >= largest && pieces <= kSeamPiecesMax - held_pieces);
}

void Laws::check_block() const {
  if (tiers_.block == kNoTier) return;
  block_.space.check_invariants();
  std::vector<tier::Extent> extents;
  std::vector<tier::Extent> checksums;
  std::uint64_t used = 0;
  for (const auto& [id, session] : registry_.all) {
    for (const Tensor& tensor : session->tensors.all()) {
      if (!tensor.live() || !tensor.has(Level::kBlock)) continue;
      const tier::Location at = tiers_.location(*session, tensor, Level::kBlock);
      TERRACE_CHECK(at.pieces.bytes() == tensor.extent_bytes());
      for (const tier::Extent& piece : at.pieces.span()) extents.push_back(piece);
      checksums.push_back({at.first_checksum, tier::chunk_count(tensor.bytes)});
      used += tensor.extent_bytes();
    }
  }
  // What is out of use is nobody's, and all of it is known, by a successor too.
  std::uint64_t retired = 0;
  for (const tier::Extent& region : ledger_.retired) retired += region.bytes;
  extents.insert(extents.end(), ledger_.retired.begin(), ledger_.retired.end());
  TERRACE_CHECK(retired == block_.space.retired_bytes());
  TERRACE_CHECK(std::ranges::equal(catalog_.retired().first(catalog_.node().retired_count),
                                   std::span(ledger_.retired).first(std::min(ledger_.retired.size(), kRetiredMax))));
  check_disjoint(extents);
  check_disjoint(checksums);
  TERRACE_CHECK(used == block_.space.used_bytes() && used == tiers_[tiers_.block].used_bytes);
}

}  // namespace terrace::engine
