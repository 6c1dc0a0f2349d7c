// SPDX-License-Identifier: Apache-2.0
// The laws of DESIGN, as far as the engine can see them. What clients scribble into their own tables is not held
// against it: only words that the engine wrote alone are compared.
#include <algorithm>
#include <cstring>

#include "engine/engine_impl.h"

namespace terrace::engine {
namespace {

void check_disjoint(std::vector<tier::Extent>& extents) {
  std::sort(extents.begin(), extents.end());
  for (std::size_t i = 1; i < extents.size(); ++i) TERRACE_CHECK(extents[i - 1].end() <= extents[i].offset);
}

}  // namespace

void EngineImpl::check_invariants(std::span<const SessionId> scribbled) const {
  for (const auto& [id, session] : sessions_) {
    TERRACE_CHECK(session->id == id);
    check_session(*session, std::ranges::any_of(session->members, [&](const Member& member) {
      return std::ranges::find(scribbled, member.id) != scribbled.end();
    }));
  }
  check_block();
  check_catalog();
  check_texts();
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (!tiers_[tier].mapped()) continue;
    TERRACE_CHECK(claimed_bytes(tier) <= tiers_[tier].options.capacity_bytes);  // law 3
    std::uint64_t used = 0;
    for (const auto& [id, session] : sessions_)
      for (const Tensor& tensor : session->tensors.all())
        if (tensor.live() && at_tier(tensor, tier)) used += tensor.extent_bytes();
    TERRACE_CHECK(used == tiers_[tier].used_bytes);
  }
  // Law 6: whoever waits is known, and looked at by its deadline.
  std::size_t waiting = opens_.size();
  for (const auto& [id, session] : sessions_) {
    for (const Member& member : session->members) waiting += member.close_request.has_value() ? 1 : 0;
    for (const Admission& admission : session->admissions) {
      if (admission.is(Admission::Kind::kPrefetch)) continue;
      TERRACE_CHECK(waiting_.contains(admission.request));
      ++waiting;
    }
  }
  TERRACE_CHECK(waiting == waiting_.size());
  for (const auto& [deadline, request] : deadlines_)
    TERRACE_CHECK(deadline > now_ && waiting_.find(request)->deadline == deadline);
  TERRACE_CHECK(stirred_.empty() && !opens_stirred_);
}

// What a successor would find is what is so.
void EngineImpl::check_catalog() const {
  TERRACE_CHECK(touched_.empty() && touched_sessions_.empty() && freed_records_.empty());
  for (const auto& [id, session] : sessions_) {
    const SessionRecord record = record_of(*session);
    TERRACE_CHECK(std::memcmp(&record, &catalog_->session(session->record), sizeof record) == 0);
    for (const Member& member : session->members) {
      const SessionRecord part = session->is_share() ? record_of(*session, member) : record;
      TERRACE_CHECK(std::memcmp(&part, &catalog_->session(member.record), sizeof part) == 0);
    }
    if (session->life != Session::Life::kOpen) continue;
    for (std::size_t at = 0; at < session->tensors.size(); ++at) {
      const TensorRecord recorded = catalog_->tensor(session->record, at);
      const TensorState state = state_of(*session, session->tensors[at]);
      TERRACE_CHECK(std::memcmp(&state, &recorded.state, sizeof state) == 0);
      const TensorRarities rarities = rarities_of(session->tensors[at]);
      TERRACE_CHECK(!session->tensors[at].live() || std::memcmp(&rarities, &recorded.rarities, sizeof rarities) == 0);
    }
  }
}

// Each in a place of its own, and no place lost.
void EngineImpl::check_texts() const {
  std::vector<tier::Extent> texts;
  std::uint64_t used = 0;
  for (const auto& [id, session] : sessions_)
    for (std::uint32_t at = 0; at < session->tensors.size(); ++at) {
      if (!session->at(Slot{at}).live()) continue;
      const TensorFacts& facts = recorded(*session, Slot{at}).facts;
      TERRACE_CHECK(facts.bytes == session->at(Slot{at}).bytes);
      texts.push_back({facts.text, facts.text_bytes()});
      used += facts.text_bytes();
    }
  check_disjoint(texts);
  TERRACE_CHECK(used == text_space_.used_bytes());
}

void EngineImpl::check_session(const Session& session, bool scribbled) const {
  std::size_t transfers = 0;
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    transfers += tensor.transfer != 0 && flights_.contains(TransferId{tensor.transfer}) ? 1 : 0;
    if (!tensor.live()) continue;
    if (!tensor.deleted) {
      ++count;
      bytes += tensor.bytes;
      TERRACE_CHECK(session.names.find(name(session, Slot{at}), names_of(session)) == Slot{at});
    }
    if (session.life != Session::Life::kOpen) continue;
    check_tensor(session, Slot{at});
    if (!scribbled) check_word(session, Slot{at});
  }
  TERRACE_CHECK(transfers == session.transfers);
  TERRACE_CHECK(count == session.tensor_count && count == session.names.size() && bytes == session.tensor_bytes);
  check_places(session);
  if (!scribbled && session.life == Session::Life::kOpen)
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier)
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
      sessions_.size() == 1 && opens_.empty();
  if (scribbled || !still || session.is_share() || former_at_work_ || session.life != Session::Life::kOpen) return;
  for (const Admission& admission : session.admissions)
    TERRACE_CHECK(admission.planned || admission.phase != Admission::Phase::kWaiting ||
                  admission.block != Admission::Block::kSpace);
}

void EngineImpl::check_tensor(const Session& session, Slot slot) const {
  const Tensor& tensor = session.at(slot);
  TERRACE_CHECK((tensor.valid & ~tensor.extents) == 0);
  TERRACE_CHECK(tensor.has(home_level_));
  // Law 2.
  TERRACE_CHECK(!tensor.written || tensor.lost || tensor.deleted || tensor.valid != 0);
  TERRACE_CHECK(!tensor.lost || tensor.valid == 0);
  const bool landing = tensor.activity == Activity::kLanding;
  TERRACE_CHECK((tensor.transfer != 0) == (!tensor.idle() && !landing));
  TERRACE_CHECK(!landing ||
                (former_at_work_ && tensor.published == Level::kNone && tensor.valid == bit(Level::kBlock)));
  if (tensor.transfer != 0) TERRACE_CHECK(flights_.find(TransferId{tensor.transfer})->slot == slot);
  if (tensor.published != Level::kNone) TERRACE_CHECK(tensor.written && tensor.is_valid(tensor.published));
  // Law 4: what may be leased is touched by nothing but a write-back that reads it.
  if (tensor.published != Level::kNone && !tensor.idle())
    TERRACE_CHECK(flights_.find(TransferId{tensor.transfer})->to != tensor.published);
  if (tensor.pinned != Level::kNone) TERRACE_CHECK(tensor.has(tensor.pinned));
  TERRACE_CHECK((tensor.pinner != SessionId{}) == (session.is_share() && tensor.pinned != Level::kNone));
  // What is given up is nobody's to lease, and is gone as soon as nobody moves it.
  if (tensor.forget) TERRACE_CHECK(tensor.published == Level::kNone && (!tensor.idle() || tensor.admission != 0));
}

void EngineImpl::check_word(const Session& session, Slot slot) const {
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
    TERRACE_CHECK(word.wanted == is_awaited(session, tensor));
    TERRACE_CHECK(word.torn || !tensor.torn);
  }
}

void EngineImpl::check_places(const Session& session) const {
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (!tiers_[tier].mapped()) continue;
    const Place& place = *session.places[tier];
    place.space.check_invariants();
    TERRACE_CHECK(fenced_ || place.fence == kNoFence);
    const Level level = tiers_[tier].level;
    std::vector<tier::Extent> extents = place.fenced;
    std::uint64_t leaving = 0;
    std::size_t used_seams = 0;
    for (const Tensor& tensor : session.tensors.all()) {
      if (!tensor.live() || !at_tier(tensor, tier)) continue;
      tier::Extent extent = tensor.extent(level);
      const auto flight = flights_.find(TransferId{tensor.transfer});
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
void EngineImpl::check_guarantee(const Session& session, std::size_t tier) const {
  const Place& place = *session.places[tier];
  std::uint64_t held_bytes = 0;
  std::size_t held_pieces = 0;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !at_tier(tensor, tier) || !stays(session, Slot{at}, tiers_[tier].level)) continue;
    held_bytes += tensor.extent_bytes();
    const auto seam = place.seams.find(tensor.offset[index(tiers_[tier].level)]);
    if (seam != place.seams.end()) held_pieces += seam->second.pieces.size();
  }
  if (held_bytes >= place.floor_bytes) return;
  std::uint64_t largest = 0;
  for (const Tensor& tensor : session.tensors.all())
    if (tensor.live() && !tensor.deleted && tensor.extent_bytes() <= place.floor_bytes - held_bytes)
      largest = std::max(largest, tensor.extent_bytes());
  const std::vector<std::uint64_t> runs = runs_at_best(session, tier);
  if (largest <= runs.front()) return;
  TERRACE_CHECK(can_stitch(tier));
  std::uint64_t bytes = 0;
  std::size_t pieces = 0;
  while (bytes < largest && pieces < runs.size()) bytes += runs[pieces++];
  TERRACE_CHECK(bytes >= largest && pieces <= kSeamPiecesMax - held_pieces);
}

void EngineImpl::check_block() const {
  if (block_tier_ == SIZE_MAX) return;
  block_space_.check_invariants();
  std::vector<tier::Extent> extents;
  std::vector<tier::Extent> checksums;
  std::uint64_t used = 0;
  for (const auto& [id, session] : sessions_) {
    for (const Tensor& tensor : session->tensors.all()) {
      if (!tensor.live() || !tensor.has(Level::kBlock)) continue;
      const tier::Location at = location(*session, tensor, Level::kBlock);
      TERRACE_CHECK(at.pieces.bytes() == tensor.extent_bytes());
      for (const tier::Extent& piece : at.pieces.span()) extents.push_back(piece);
      checksums.push_back({at.first_checksum, tier::chunk_count(tensor.bytes)});
      used += tensor.extent_bytes();
    }
  }
  check_disjoint(extents);
  check_disjoint(checksums);
  TERRACE_CHECK(used == block_space_.used_bytes() && used == tiers_[block_tier_].used_bytes);
}

}  // namespace terrace::engine
