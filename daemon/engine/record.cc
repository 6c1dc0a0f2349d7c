// SPDX-License-Identifier: Apache-2.0
// The engine's state on its way into the catalog. Whatever changes a tensor, a session or the node as they are recorded
// touches it; commit() writes what was touched as one change. It comes before a word is published and before transfers
// and replies leave, so that nobody ever acts on what a successor would not know.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/catalog/facts.h"
#include "engine/engine_impl.h"
#include "engine/values/planted.h"

namespace terrace::engine {
namespace {

void put_label(SessionRecord& record, std::string_view label) {
  std::copy_n(label.begin(), std::min(label.size(), record.label.size() - 1), record.label.begin());
}

void put_member(SessionRecord& record, const Member& member) {
  record.pid = member.pid;
  record.maps_segments = member.maps_segments ? 1 : 0;
  record.writes = member.writes ? 1 : 0;
  record.token = member.token;
  put_label(record, member.label);
}

}  // namespace

void EngineImpl::touch(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.touched) return;
  tensor.touched = true;
  touched_.emplace_back(session.id, slot);
}

void EngineImpl::touch(Session& session) {
  if (session.touched) return;
  session.touched = true;
  touched_sessions_.push_back(session.id);
}

TensorState EngineImpl::state_of(const Session& session, const Tensor& tensor) {
  TensorState state;
  state.incarnation = tensor.incarnation;
  state.session = static_cast<std::uint32_t>(session.id);
  if (!tensor.live()) return state;
  state.number = tensor.number;
  state.version = tensor.version;
  state.offset = tensor.offset;
  state.first_checksum = tensor.first_checksum;
  state.device = tensor.device;
  state.extents = tensor.extents;
  state.valid = tensor.valid;
  state.published = static_cast<std::uint8_t>(tensor.published);
  state.pinned = static_cast<std::uint8_t>(tensor.pinned);
  const auto flag = [&](bool set, std::uint8_t value) { state.flags |= set ? value : std::uint8_t{0}; };
  flag(tensor.written, kWritten);
  flag(tensor.lost, kLost);
  flag(tensor.torn, kTorn);
  flag(tensor.deleted, kDeleted);
  flag(tensor.forget, kForget);
  flag(tensor.home_bad, kHomeBad);
  flag(!tensor.idle(), kUnderWay);
  flag(tensor.pieces() != nullptr || tensor.sliding != Level::kNone || tensor.holder != SessionId{} ||
           tensor.pinner != SessionId{},
       kRare);
  return state;
}

TensorRarities EngineImpl::rarities_of(const Tensor& tensor) {
  TensorRarities rarities;
  if (tensor.sliding != Level::kNone) rarities.slide_offset = tensor.slide().offset;
  if (tensor.sliding != Level::kNone) rarities.slid_bytes = tensor.slide().bytes;
  rarities.holder = static_cast<std::uint32_t>(tensor.holder);
  rarities.pinner = static_cast<std::uint32_t>(tensor.pinner);
  rarities.sliding = static_cast<std::uint8_t>(tensor.sliding);
  if (tensor.pieces() == nullptr) return rarities;
  rarities.piece_count = static_cast<std::uint8_t>(tensor.pieces()->size());
  std::ranges::copy(tensor.pieces()->span(), rarities.pieces.begin());
  return rarities;
}

std::uint64_t EngineImpl::tenant_record(const Session& session) const {
  const std::uint32_t socket = session.tenant.socket;
  return options_.tenants.empty() ? socket : options_.tenants.at(socket);
}

SessionRecord EngineImpl::record_of(const Session& session) const {
  SessionRecord record;
  record.id = static_cast<std::uint32_t>(session.id);
  record.tenant = tenant_record(session);
  record.uid = session.tenant.uid;
  record.slots_used = static_cast<std::uint32_t>(session.tensors.size());
  record.ending = session.life == Session::Life::kEnding ? 1 : 0;
  record.step = session.step;
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (session.places[tier] == nullptr) continue;
    record.floor_bytes[tier] = session.places[tier]->floor_bytes;
    record.mapped_bytes[tier] = session.places[tier]->space.capacity_bytes();
  }
  if (session.is_share()) {
    record.share = record.id;
    put_label(record, session.share);
  } else {
    put_member(record, session.members.front());
  }
  return record;
}

// Of one part in a share.
SessionRecord EngineImpl::record_of(const Session& share, const Member& member) const {
  SessionRecord record;
  record.id = static_cast<std::uint32_t>(member.id);
  record.tenant = tenant_record(share);
  record.uid = share.tenant.uid;
  record.share = static_cast<std::uint32_t>(share.id);
  record.ending = share.life == Session::Life::kEnding ? 1 : 0;
  put_member(record, member);
  return record;
}

NodeRecord EngineImpl::node_record() const {
  return {.next_session = next_session_,
          .retired_count = static_cast<std::uint32_t>(std::min(retired_.size(), kRetiredMax)),
          .next_number = next_number_,
          .steps = steps_,
          .next_seam = next_seam_};
}

void EngineImpl::commit() {
  Session* session = nullptr;
  for (const auto& [id, slot] : touched_) {
    if (session == nullptr || session->id != id) session = find_session(id);
    if (session == nullptr) continue;
    session->at(slot).touched = false;
    const Tensor& tensor = session->at(slot);
    const TensorState state = state_of(*session, tensor);
    if ((state.flags & kRare) != 0)
      catalog_->put(session->record, index(slot), state, rarities_of(tensor));
    else
      catalog_->put(session->record, index(slot), state);
  }
  touched_.clear();
  for (const SessionId id : touched_sessions_) {
    session = find_session(id);
    if (session == nullptr) continue;
    session->touched = false;
    catalog_->put(session->record, record_of(*session));
    if (!session->is_share()) continue;
    for (const Member& member : session->members) catalog_->put(member.record, record_of(*session, member));
  }
  touched_sessions_.clear();
  for (const std::size_t record : freed_records_) {
    catalog_->put(record, SessionRecord{});
    free_records_.insert(record);
  }
  freed_records_.clear();
  for (std::size_t i = catalog_->node().retired_count; i < std::min(retired_.size(), kRetiredMax); ++i)
    catalog_->put_retired(i, retired_[i]);
  catalog_->put(node_record());
  catalog_->commit();
}

TensorRecord EngineImpl::recorded(const Session& session, Slot slot) const {
  return catalog_->tensor(session.record, index(slot));
}

std::string_view EngineImpl::name(const Session& session, Slot slot) const { return name_of(recorded(session, slot)); }

// Places among the catalog's texts, in their order.
Result<std::vector<std::uint64_t>> EngineImpl::reserve_texts(const std::vector<TensorSpec>& specs) {
  std::vector<std::uint64_t> places;
  for (const TensorSpec& spec : specs) {
    const auto place = text_space_.allocate(facts_of(spec).text_bytes());
    if (!place) {
      free_texts(specs, places);
      return fail(
          ErrorCode::kResourceExhausted,
          fmt::format("the name and shape of tensor '{}' find no room in the catalog: delete others", spec.name));
    }
    places.push_back(place->offset);
  }
  return places;
}

// Of the first specs, as many as there are places.
void EngineImpl::free_texts(const std::vector<TensorSpec>& specs, const std::vector<std::uint64_t>& places) {
  for (std::size_t i = 0; i < places.size(); ++i) text_space_.free({places[i], facts_of(specs[i]).text_bytes()});
}

void EngineImpl::free_text(const Session& session, Slot slot) {
  const TensorFacts& facts = recorded(session, slot).facts;
  text_space_.free({facts.text, facts.text_bytes()});
}

Result<void> EngineImpl::check_note(Session& session, SessionId member, std::size_t slots) const {
  if (!session.find_member(member)->maps_segments || catalog_->has_room_for_note(slots)) return {};
  return fail(ErrorCode::kResourceExhausted, "too many requests are granted and not yet answered: ask again");
}

// The notes of a request that changes what its trainer holds: until its answer is in the ring, a successor undoes it,
// and the trainer asks again.
void EngineImpl::note(Session& session, const GrantRecord& grant, const std::vector<GrantedSlot>& slots) {
  if (!session.find_member(SessionId{grant.session})->maps_segments) return;
  if (planted(Plant::kNoteSkipped)) return;
  notes_.add(RequestId{grant.request}, catalog_->note(grant, slots));
}

void EngineImpl::answering(RequestId request, std::uint32_t position) {
  const std::uint64_t* const note = notes_.find(request);
  if (note != nullptr) catalog_->answering(*note, position);
}

void EngineImpl::answered(RequestId request) {
  if (notes_.take(request) && notes_.empty()) catalog_->forget_notes();
}

}  // namespace terrace::engine
