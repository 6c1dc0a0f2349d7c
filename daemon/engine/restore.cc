// SPDX-License-Identifier: Apache-2.0
// An engine from the catalog of one that died: sessions with their segments and tensors are there again, what was under
// way is not, and what took effect without an answer is undone, since whoever asked will ask again.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/engine_impl.h"

namespace terrace::engine {
namespace {

std::unexpected<Error> damaged(const std::string& what) {
  return fail(ErrorCode::kFailedPrecondition, "the catalog that a former daemon left is damaged: " + what);
}

bool is_free(const tier::ExtentAllocator& space, tier::Extent extent) {
  if (extent.bytes == 0 || extent.end() < extent.offset || extent.end() > space.capacity_bytes()) return false;
  const auto free = space.free_within(extent);
  return free.size() == 1 && free.front() == extent;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::restore(Options options, CatalogMemory& catalog,
                                                std::span<const Survivor> survivors) {
  if (auto good = check(options); !good) return std::unexpected(good.error());
  auto engine = std::make_unique<EngineImpl>(std::move(options), nullptr);
  if (auto restored = engine->restore_from(catalog, survivors); !restored) return std::unexpected(restored.error());
  return engine;
}

Result<void> EngineImpl::restore_from(CatalogMemory& catalog, std::span<const Survivor> survivors) {
  for (std::size_t tier = 0; tier < kTiersMax; ++tier) {
    const TierRecord now = tier < tiers_.size() ? tier_record(tier) : TierRecord{};
    const TierRecord& then = catalog.tiers()[tier];
    if (now.kind != then.kind || now.capacity_bytes != then.capacity_bytes || now.segment_bytes != then.segment_bytes)
      return fail(ErrorCode::kFailedPrecondition,
                  fmt::format("the catalog that a former daemon left is of other tiers (tier {} had {} bytes and is to "
                              "have {}): configure them as they were, or discard it",
                              tier, then.capacity_bytes, now.capacity_bytes));
  }
  next_session_ = catalog.node().next_session;
  next_number_ = catalog.node().next_number;
  steps_ = catalog.node().steps;
  for (const tier::Extent& extent : catalog.retired().first(catalog.node().retired_count)) {
    if (!is_free(block_space_, extent)) return damaged("a retired region lies outside the block tier");
    block_space_.retire(extent);
    retired_.push_back(extent);
  }
  for (std::size_t record = 0; record < catalog.shape().sessions_max; ++record) {
    if (catalog.session(record).id == 0 || catalog.session(record).ending != 0) continue;
    const auto survivor = std::ranges::find(survivors, SessionId{catalog.session(record).id}, &Survivor::session);
    if (survivor == survivors.end()) continue;  // its descriptors are lost, and it with them
    if (auto restored = restore_session(catalog, record, *survivor); !restored) return restored;
  }
  catalog_ = &catalog;
  for (std::size_t record = 0; record < catalog.shape().sessions_max; ++record)
    if (std::ranges::none_of(sessions_, [&](const auto& entry) { return entry.second->record == record; })) {
      if (catalog.session(record).id != 0) catalog.put(record, SessionRecord{});
      free_records_.insert(record);
    }
  undo_unanswered(survivors);
  for (auto& [id, session] : sessions_) {
    for (std::uint32_t at = 0; at < session->tensors.size(); ++at) touch(*session, Slot{at});
    touch(*session);
    settle(*session);
  }
  commit();
  catalog.forget_notes();
  run();
  return {};
}

Result<void> EngineImpl::restore_session(const CatalogMemory& catalog, std::size_t record, const Survivor& survivor) {
  const SessionRecord& was = catalog.session(record);
  auto made = std::make_unique<Session>();
  Session& session = *made;
  session.id = SessionId{was.id};
  session.record = record;
  session.tenant = {was.tenant_socket, was.uid};
  session.table = survivor.table;
  session.label.assign(was.label.begin(), std::ranges::find(was.label, '\0'));
  session.pid = was.pid;
  session.token = was.token;
  session.maps_segments = was.maps_segments != 0;
  session.step = was.step;
  session.places.resize(tiers_.size());
  if (was.slots_used > session.table.size() || was.slots_used > catalog.shape().tensors_per_session_max)
    return damaged(fmt::format("session {} uses {} slots of {}", was.id, was.slots_used, session.table.size()));
  for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
    if (!tiers_[tier].mapped()) continue;
    const TierOptions& options = tiers_[tier].options;
    if (was.mapped_bytes[tier] > options.capacity_bytes || was.mapped_bytes[tier] % options.segment_bytes != 0)
      return damaged(
          fmt::format("session {} has mapped {} bytes of '{}'", was.id, was.mapped_bytes[tier], options.name));
    session.places[tier] = std::make_unique<Place>(options_.make_policy());
    session.places[tier]->floor_bytes = was.floor_bytes[tier];
    session.places[tier]->space.extend(was.mapped_bytes[tier]);
  }
  for (std::uint32_t at = 0; at < was.slots_used; ++at) {
    session.tensors.emplace_back().incarnation = 1;
    const TensorRecord& tensor = catalog.tensor(record, at);
    if (tensor.state.session == was.id)
      if (auto restored = restore_tensor(session, Slot{at}, tensor); !restored) return restored;
    if (!session.tensors.back().live()) session.free_slots.push_back(Slot{at});
  }
  std::ranges::reverse(session.free_slots);
  sessions_.emplace(session.id, std::move(made));
  return {};
}

Result<void> EngineImpl::restore_tensor(Session& session, Slot slot, const TensorRecord& record) {
  const TensorState& was = record.state;
  Tensor& tensor = session.at(slot);
  tensor.incarnation = was.incarnation;
  if (was.number == 0) return {};
  const auto bad = [&](const char* what) {
    return damaged(
        fmt::format("tensor {} of session {}: {}", index(slot), static_cast<std::uint32_t>(session.id), what));
  };
  if (record.facts.dimension_count > record.facts.dimensions.size() || was.piece_count > tier::kPiecesMax ||
      was.published > index(Level::kNone) || was.pinned > index(Level::kNone) || was.device >= tiers_.size())
    return bad("a count is out of bounds");
  tensor.name.assign(record.facts.name.begin(), std::ranges::find(record.facts.name, '\0'));
  tensor.bytes = record.facts.bytes;
  tensor.dtype = record.facts.dtype;
  tensor.rank = static_cast<std::uint8_t>(record.facts.rank);
  tensor.dimensions.assign(record.facts.dimensions.begin(),
                           record.facts.dimensions.begin() + record.facts.dimension_count);
  tensor.number = was.number;
  tensor.version = was.version;
  tensor.offset = was.offset;
  tensor.first_checksum = was.first_checksum;
  tensor.device = was.device;
  tensor.valid = was.valid & was.extents;
  tensor.published = static_cast<Level>(was.published);
  tensor.pinned = static_cast<Level>(was.pinned);
  tensor.written = (was.flags & kWritten) != 0;
  tensor.lost = (was.flags & kLost) != 0;
  tensor.torn = (was.flags & kTorn) != 0;
  tensor.deleted = (was.flags & kDeleted) != 0;
  tensor.forget = (was.flags & kForget) != 0;
  tensor.home_bad = (was.flags & kHomeBad) != 0;
  for (const Level level : {Level::kDevice, Level::kMemory}) {
    if ((was.extents & bit(level)) == 0) continue;
    const std::size_t tier = tier_index(tensor, level);
    if (tier >= tiers_.size() || tiers_[tier].level != level) return bad("it has a copy in a tier that is not there");
    Place& place = *session.places[tier];
    if (!is_free(place.space, tensor.extent(level))) return bad("its extent overlaps another");
    place.space.take(tensor.extent(level));
    place.policy->arrived(slot, now_);
    tiers_[tier].used_bytes += tensor.extent_bytes();
    tensor.extents |= bit(level);
    if (was.sliding != static_cast<std::uint8_t>(level)) continue;
    const std::uint64_t apart = tensor.offset[index(level)] - was.slide_offset;
    const tier::Extent fresh{was.slide_offset, std::min(tensor.extent_bytes(), apart)};
    if (was.slid_bytes > tensor.extent_bytes() || !is_free(place.space, fresh)) return bad("it slid out of its space");
    place.space.take(fresh);
    tensor.sliding = level;
    tensor.slide_offset = was.slide_offset;
    tensor.slid_bytes = was.slid_bytes;
  }
  if ((was.extents & bit(Level::kBlock)) != 0)
    if (auto home = restore_home(tensor, was); !home) return bad(home.error().message.c_str());
  if (!tensor.has(home_level_)) return bad("it has no home");
  if (!tensor.deleted) {
    if (!session.names.emplace(tensor.name, slot).second) return bad("another has its name");
    ++session.tensor_count;
    session.tensor_bytes += tensor.bytes;
  }
  return {};
}

Result<void> EngineImpl::restore_home(Tensor& tensor, const TensorState& was) {
  tier::Pieces pieces;
  for (const tier::Extent& piece : std::span(was.pieces).first(was.piece_count)) {
    if (!is_free(block_space_, piece)) return fail(ErrorCode::kFailedPrecondition, "its home overlaps another");
    block_space_.take(piece);
    pieces.push(piece);
  }
  const tier::Extent sums{was.first_checksum, tier::chunk_count(tensor.bytes)};
  if (pieces.bytes() != tensor.extent_bytes() || !is_free(checksum_space_, sums))
    return fail(ErrorCode::kFailedPrecondition, "its home is not as large as it");
  checksum_space_.take(sums);
  if (pieces.size() > 1) tensor.pieces = std::make_unique<tier::Pieces>(pieces);
  tensor.extents |= bit(Level::kBlock);
  tiers_[block_tier_].used_bytes += tensor.extent_bytes();
  return {};
}

// Leases that their trainer was not told of end; tensors that it was not told of go.
void EngineImpl::undo_unanswered(std::span<const Survivor> survivors) {
  catalog_->each_note([&](const GrantRecord& grant, std::span<const GrantedSlot> slots) {
    const auto survivor = std::ranges::find(survivors, SessionId{grant.session}, &Survivor::session);
    Session* session = find_session(SessionId{grant.session});
    if (session == nullptr || survivor == survivors.end()) return;
    const auto beyond = static_cast<std::int32_t>(survivor->completions - grant.position);
    if (grant.answering != 0 && beyond >= 0) return;
    if (grant.kind == GrantRecord::Kind::kStep && static_cast<std::uint32_t>(session->step) == grant.mode) {
      --session->step;
      --steps_;
    }
    for (const GrantedSlot& granted : slots) {
      if (granted.slot >= session->tensors.size()) continue;
      const Slot slot{granted.slot};
      if (grant.kind == GrantRecord::Kind::kTensors) {
        const Tensor& tensor = session->at(slot);
        if (tensor.live() && !tensor.deleted && tensor.incarnation == granted.mark)
          unanswered_.emplace_back(session->id, slot);
      } else {
        const auto mode = static_cast<shm::Mode>(grant.mode % 256);
        const bool undone = shm::ungrant(session->table.word(slot), mode, (granted.mark & 1) != 0);
        // Its content was given up with the record, which comes before the word.
        const bool recorded = index(session->at(slot).published) == grant.mode / 256;
        if ((undone || recorded) && mode == shm::Mode::kOverwrite && (granted.mark & kFresh) != 0)
          torn_.emplace_back(session->id, slot);
      }
    }
  });
}

// The words and the records of one session are brought together again; then nothing of it is under way.
void EngineImpl::settle(Session& session) {
  for (std::uint32_t at = 0; at < session.table.size(); ++at) {
    const Slot slot{at};
    if (at < session.tensors.size() && session.tensors[at].live()) {
      settle_word(session, slot);
      continue;
    }
    const std::uint32_t incarnation = at < session.tensors.size() ? session.tensors[at].incarnation : 1;
    if (at < session.tensors.size() || session.table.load(slot) != shm::Word{})
      session.table.publish(slot, {.state = shm::State::kFree, .incarnation = incarnation}, 0, 0, 0);
  }
  for (const auto& [id, slot] : torn_)
    if (id == session.id) tear(session, slot);
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live()) continue;
    if (tensor.sliding != Level::kNone)
      slide_on(session, Slot{at});
    else if (!tensor.deleted)
      rest(session, Slot{at});
  }
  for (const auto& [id, slot] : unanswered_)
    if (id == session.id) delete_tensor(session, slot);
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || !tensor.deleted || std::ranges::find(session.leaving, Slot{at}) != session.leaving.end())
      continue;
    if (!try_finish_delete(session, Slot{at})) {
      want(session, Slot{at});
      session.leaving.push_back(Slot{at});
    }
  }
}

// Lease counts and dirty are true in the word, everything else in the record. A word that is neither is a scribble of
// its own session's: the copy that was published stands, with nobody's lease.
void EngineImpl::settle_word(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  const shm::Word word = session.table.load(slot);
  if (tensor.published == Level::kNone) return unpublish(session, slot);
  const Level level = tensor.published;
  const bool known = word.incarnation == tensor.incarnation &&
                     (word.state == shm::State::kResident || word.state == shm::State::kClaimed);
  if (!known || word.dirty) tensor.valid = bit(level);
  const bool leased = known && word.state == shm::State::kResident && session.maps_segments;
  if (leased) {
    shm::want(session.table.word(slot), false);
    shm::lend(session.table.word(slot), false);
    return;
  }
  // Of a session over gRPC, a lease ended with the call that held it.
  const bool torn = known && !session.maps_segments && word.writers != 0;
  shm::publish(session.table.word(slot),
               {.state = shm::State::kClaimed, .turn = word.turn, .incarnation = tensor.incarnation});
  tensor.published = Level::kNone;
  tensor.claimed = true;
  if (torn) {
    tensor.torn = true;
    tensor.forget = true;
  }
}

}  // namespace terrace::engine
