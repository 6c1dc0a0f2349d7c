// SPDX-License-Identifier: Apache-2.0
// The engine's state on its way into the catalog. Whatever changes a tensor, a session or the node as they are recorded
// touches it; commit() writes what was touched as one change. It comes before a word is published and before transfers
// and replies leave, so that nobody ever acts on what a successor would not know.
#include "engine/residency/records.h"

#include <algorithm>

#include "engine/catalog/facts.h"

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

void Records::touch(Holdings& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  if (tensor.touched) return;
  tensor.touched = true;
  touched_.emplace_back(session.id, slot);
}

void Records::touch(Holdings& session) {
  if (session.touched) return;
  session.touched = true;
  touched_sessions_.push_back(session.id);
}

TensorState Records::state_of(const Holdings& session, const Tensor& tensor) {
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

TensorRarities Records::rarities_of(const Tensor& tensor) {
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

std::uint64_t Records::tenant_record(const Holdings& session) const {
  const std::uint32_t socket = session.tenant.socket;
  return options_.tenants.empty() ? socket : options_.tenants.at(socket);
}

SessionRecord Records::record_of(const Holdings& session) const {
  SessionRecord record;
  record.id = static_cast<std::uint32_t>(session.id);
  record.tenant = tenant_record(session);
  record.uid = session.tenant.uid;
  record.slots_used = static_cast<std::uint32_t>(session.tensors.size());
  record.ending = session.life == Holdings::Life::kEnding ? 1 : 0;
  record.step = session.step;
  for (const TierId tier : tiers_.ids()) {
    if (session.places[tier] == nullptr) continue;
    record.floor_bytes[index(tier)] = session.places[tier]->floor_bytes;
    record.mapped_bytes[index(tier)] = session.places[tier]->space.capacity_bytes();
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
SessionRecord Records::record_of(const Holdings& share, const Member& member) const {
  SessionRecord record;
  record.id = static_cast<std::uint32_t>(member.id);
  record.tenant = tenant_record(share);
  record.uid = share.tenant.uid;
  record.share = static_cast<std::uint32_t>(share.id);
  record.ending = share.life == Holdings::Life::kEnding ? 1 : 0;
  put_member(record, member);
  return record;
}

NodeRecord Records::node_record() const {
  return {.next_session = ledger_.next_session,
          .retired_count = static_cast<std::uint32_t>(std::min(ledger_.retired.size(), kRetiredMax)),
          .next_number = ledger_.next_number,
          .steps = ledger_.steps,
          .next_seam = ledger_.next_seam};
}

void Records::commit() {
  Holdings* session = nullptr;
  for (const auto& [id, slot] : touched_) {
    if (session == nullptr || session->id != id) session = registry_.find(id);
    if (session == nullptr) continue;
    session->at(slot).touched = false;
    const Tensor& tensor = session->at(slot);
    const TensorState state = state_of(*session, tensor);
    if ((state.flags & kRare) != 0)
      catalog_.put(session->record, index(slot), state, rarities_of(tensor));
    else
      catalog_.put(session->record, index(slot), state);
  }
  touched_.clear();
  for (const SessionId id : touched_sessions_) {
    session = registry_.find(id);
    if (session == nullptr) continue;
    session->touched = false;
    catalog_.put(session->record, record_of(*session));
    if (!session->is_share()) continue;
    for (const Member& member : session->members) catalog_.put(member.record, record_of(*session, member));
  }
  touched_sessions_.clear();
  for (const std::size_t record : ledger_.freed_records) {
    catalog_.put(record, SessionRecord{});
    ledger_.free_records.insert(record);
  }
  ledger_.freed_records.clear();
  for (std::size_t& i = ledger_.retired_recorded; i < std::min(ledger_.retired.size(), kRetiredMax); ++i)
    catalog_.put_retired(i, ledger_.retired[i]);
  catalog_.put(node_record());
  catalog_.commit();
}

TensorRecord Records::recorded(const Holdings& session, Slot slot) const {
  return catalog_.tensor(session.record, index(slot));
}

std::string_view Records::name(const Holdings& session, Slot slot) const { return name_of(recorded(session, slot)); }

// For a successor: nothing of it is worth waiting for.
void Records::record_loss(TierId tier, bool lost) {
  std::vector<TierRecord> records(catalog_.tiers().begin(), catalog_.tiers().end());
  if ((records[index(tier)].lost != 0) == lost) return;
  records[index(tier)].lost = lost ? 1 : 0;
  catalog_.put(records);
  commit();
}

}  // namespace terrace::engine
