// SPDX-License-Identifier: Apache-2.0
// An engine from the catalog of one that died: sessions with their segments and tensors are there again, what was under
// way is not, and what took effect without an answer is undone, since whoever asked will ask again.
#include "engine/restorer.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/catalog/damage.h"
#include "engine/values/planted.h"

namespace terrace::engine {
namespace {

std::unexpected<Error> damaged(const std::string& what) {
  return fail(ErrorCode::kFailedPrecondition, "the catalog that a former daemon left is damaged: " + what);
}

Result<void> check_tiers(const Options& options, std::span<const TierRecord, kTiersMax> records) {
  const std::uint32_t of_block = tier_record({.name = {}, .kind = tier::Kind::kBlock}).kind;
  for (std::size_t tier = 0; tier < kTiersMax; ++tier) {
    const TierRecord now = tier < options.tiers.size() ? tier_record(options.tiers[tier]) : TierRecord{};
    const TierRecord& then = records[tier];
    if (now.kind != then.kind || now.capacity_bytes != then.capacity_bytes || now.segment_bytes != then.segment_bytes)
      return fail(ErrorCode::kFailedPrecondition,
                  fmt::format("the catalog that a former daemon left is of other tiers (tier {} had {} bytes and is to "
                              "have {}): configure them as they were, or discard it",
                              tier, then.capacity_bytes, now.capacity_bytes));
    if (now.identity != then.identity && now.kind != of_block)
      return fail(ErrorCode::kFailedPrecondition,
                  fmt::format("the catalog that a former daemon left is of another device in tier {}, a GPU and not an "
                              "emulated one, or the other way round: configure the device as it was, or discard it",
                              tier));
    if (now.identity != then.identity)
      return fail(ErrorCode::kFailedPrecondition,
                  fmt::format("the catalog that a former daemon left is of other files of tier {}: configure the paths "
                              "as they were, in their order, or discard it",
                              tier));
  }
  return {};
}

std::unexpected<Error> of_no_tenant(const SessionRecord& was) {
  return fail(ErrorCode::kFailedPrecondition,
              fmt::format("session {} of pid {}, which a former daemon left, is of a tenant that is not configured any "
                          "more: configure it again by its name, or discard what was left",
                          was.id, was.pid));
}

}  // namespace

Result<void> Engine::check_succession(const Options& options, const CatalogShape& shape,
                                      std::span<const std::byte> catalog) {
  if (auto good = check(options, shape); !good) return good;
  const auto view = CatalogMemory::check(catalog, shape);
  if (!view) return std::unexpected(view.error());
  for (const SessionRecord& session : view->sessions)
    if (session.lives() && !tenant_socket(options, session)) return of_no_tenant(session);
  return check_tiers(options, view->tiers);
}

Result<void> Restorer::restore_from(std::span<const Survivor> survivors, std::span<const LostSegment> lost) {
  CatalogMemory& catalog = catalog_;
  if (auto same = check_tiers(options_, catalog.tiers()); !same) return same;
  ledger_.next_session = catalog.node().next_session;
  ledger_.next_number = catalog.node().next_number;
  ledger_.steps = catalog.node().steps;
  ledger_.next_seam = catalog.node().next_seam;
  if (ledger_.next_seam < tier::kSeamsBegin || ledger_.next_seam > UINT64_MAX / 2 ||
      ledger_.next_seam % kPageBytes != 0)
    return damaged(fmt::format("its next seam is {}", ledger_.next_seam));
  // A daemon that counted every nanosecond would not have come to the middle of them.
  if (ledger_.next_session == 0 || ledger_.next_session > UINT32_MAX / 2 || ledger_.next_number == 0 ||
      ledger_.next_number > UINT64_MAX / 2)
    return damaged(
        fmt::format("its next session is {} and its next tensor {}", ledger_.next_session, ledger_.next_number));
  for (const tier::Extent& extent : catalog.retired().first(catalog.node().retired_count)) {
    if (!block_.space.is_free(extent)) return damaged("a retired region lies outside the block tier");
    block_.space.retire(extent);
    ledger_.retired.push_back(extent);
  }
  ledger_.retired_recorded = ledger_.retired.size();
  if (auto members = restore_members(catalog, survivors); !members) return members;
  for (auto& [id, session] : registry_.all)
    if (auto restored = restore_session(catalog, session_of(*session)); !restored) return restored;
  if (auto agree = check_restored(); !agree) return agree;
  for (const LostSegment& segment : lost) mark_gone(segment);
  for (const TierId tier : tiers_.ids()) records_.record_loss(tier, false);  // until tier_failed() says so
  for (std::size_t record = 0; record < catalog.shape().sessions_max; ++record)
    if (!is_in_use(record)) {
      if (catalog.session(record).id != 0) catalog.put(record, SessionRecord{});
      ledger_.free_records.insert(record);
    }
  const auto unanswered = undo_unanswered(survivors);
  for (auto& [id, session] : registry_.all) {
    for (std::uint32_t at = 0; at < session->tensors.size(); ++at) records_.touch(*session, Slot{at});
    records_.touch(*session);
    for (const TierId tier : tiers_.ids())
      if (session->places[tier] != nullptr) copies_.unstitch_idle(*session, tier);
    const auto found = unanswered.find(id);
    settle(session_of(*session), found == unanswered.end() ? Unanswered{} : found->second);
    records_.commit();
  }
  catalog.forget_notes();
  return {};
}

// What no record says by itself: of things that there can be only one of, there is one, and all have room together.
Result<void> Restorer::check_restored() const {
  std::set<std::array<std::uint8_t, 16>> tokens;
  std::vector<std::uint64_t> numbers;
  std::set<std::pair<Tenant, std::string_view>> shares;
  for (const auto& [id, session] : registry_.all) {
    if (session->is_share() && !shares.emplace(session->tenant, session->share).second)
      return damaged("two shares have one name");
    for (const Member& member : session->members) {
      const bool named = member.token != std::array<std::uint8_t, 16>{};
      if (named && !tokens.insert(member.token).second) return damaged("two sessions have one token");
    }
    for (const Tensor& tensor : session->tensors.all())
      if (tensor.live()) numbers.push_back(tensor.number);
  }
  std::ranges::sort(numbers);
  if (std::ranges::adjacent_find(numbers) != numbers.end()) return damaged("two tensors have one number");
  if (!numbers.empty() && numbers.back() >= ledger_.next_number) return damaged("a tensor has a number to come");
  if ((!registry_.all.empty() && static_cast<std::uint32_t>(registry_.all.rbegin()->first) >= ledger_.next_session) ||
      (!registry_.part_of.empty() &&
       static_cast<std::uint32_t>(registry_.part_of.rbegin()->first) >= ledger_.next_session))
    return damaged("a session has a number to come");
  for (const TierId tier : tiers_.ids())
    if (tiers_[tier].mapped() && budget_.claimed_bytes(tier) > tiers_[tier].options.capacity_bytes)
      return damaged(fmt::format("its sessions have more of '{}' than there is", tiers_[tier].options.name));
  return {};
}

bool Restorer::is_in_use(std::size_t record) const {
  return std::ranges::any_of(registry_.all, [&](const auto& entry) {
    return entry.second->record == record ||
           std::ranges::find(entry.second->members, record, &Member::record) != entry.second->members.end();
  });
}

// Everybody who is still there, and for whom there is a session: their own, or the share that they have a part in.
Result<void> Restorer::restore_members(const CatalogMemory& catalog, std::span<const Survivor> survivors) {
  std::map<SessionId, std::size_t> shares;
  for (std::size_t record = 0; record < catalog.shape().sessions_max; ++record) {
    const SessionRecord& was = catalog.session(record);
    if (was.lives() && was.is_share() && !shares.emplace(SessionId{was.id}, record).second)
      return damaged(fmt::format("share {} is there twice", was.id));
  }
  for (std::size_t record = 0; record < catalog.shape().sessions_max; ++record) {
    const SessionRecord& was = catalog.session(record);
    if (!was.lives() || was.is_share()) continue;
    const auto survivor = std::ranges::find(survivors, SessionId{was.id}, &Survivor::session);
    if (survivor == survivors.end()) continue;  // its descriptors are lost, and it with them
    const auto socket = tenant_socket(options_, was);
    if (!socket) return of_no_tenant(was);
    const auto share = shares.find(SessionId{was.share});
    if (was.share != 0 && share == shares.end())
      return damaged(fmt::format("session {} has a part in share {}, which is not there", was.id, was.share));
    const SessionId id{was.share != 0 ? was.share : was.id};
    auto& session = registry_.all.try_emplace(id, nullptr).first->second;
    if (session != nullptr && was.share == 0) return damaged(fmt::format("session {} is there twice", was.id));
    if (session == nullptr) {
      session = std::make_unique<Session>();
      session->id = id;
      session->record = was.share != 0 ? share->second : record;
      session->tenant = {*socket, was.uid};
    }
    if (was.share != 0 && !registry_.part_of.emplace(SessionId{was.id}, id).second)
      return damaged(fmt::format("session {} is there twice", was.id));
    if (session->tenant != Tenant{*socket, was.uid})
      return damaged(fmt::format("session {} has a part in another tenant's share", was.id));
    Member& member = session->members.emplace_back();
    member.id = SessionId{was.id};
    member.record = record;
    member.table = survivor->table;
    member.label.assign(was.label.begin(), std::ranges::find(was.label, '\0'));
    member.pid = was.pid;
    member.token = was.token;
    member.maps_segments = was.maps_segments != 0;
    member.writes = was.share == 0 || was.writes != 0;
    ++counts_.restored.sessions;
    counts_.restored.unanswered_requests += survivor->unanswered;
  }
  for (const auto& [member, share] : registry_.part_of)
    if (registry_.all.contains(member)) return damaged("a part in a share has the number of another session");
  return {};
}

Result<void> Restorer::restore_session(const CatalogMemory& catalog, Session& session) {
  const SessionRecord& was = catalog.session(session.record);
  const auto socket = tenant_socket(options_, was);
  if (!socket || session.tenant != Tenant{*socket, was.uid})
    return damaged(fmt::format("session {} is of another tenant than whoever has a part in it", was.id));
  if (was.is_share()) session.share.assign(was.label.begin(), std::ranges::find(was.label, '\0'));
  if (was.is_share() && session.share.empty()) return damaged(fmt::format("share {} has no name", was.id));
  session.step = was.step;
  session.places = Places(tiers_.size());
  for (const Member& member : session.members)
    if (was.slots_used > member.table.size() || was.slots_used > catalog.shape().tensors_per_session_max)
      return damaged(fmt::format("session {} uses {} slots of {}", was.id, was.slots_used, member.table.size()));
  for (const TierId tier : tiers_.ids()) {
    if (!tiers_[tier].mapped()) continue;
    const TierOptions& options = tiers_[tier].options;
    for (const std::uint64_t bytes : {was.mapped_bytes[index(tier)], was.floor_bytes[index(tier)]})
      if (bytes > options.capacity_bytes || bytes % options.segment_bytes != 0)
        return damaged(fmt::format("session {} has {} bytes of '{}'", was.id, bytes, options.name));
    session.places[tier] = std::make_unique<Place>(opening_.policy_for(tier));
    session.places[tier]->floor_bytes = was.floor_bytes[index(tier)];
    session.places[tier]->space.extend(was.mapped_bytes[index(tier)]);
  }
  if (auto seams = copies_.restore_seams(catalog, session); !seams) return seams;
  for (std::uint32_t at = 0; at < was.slots_used; ++at) {
    session.at(session.tensors.add()).incarnation = 1;
    const TensorRecord tensor = catalog.tensor(session.record, at);
    if (tensor.state.session == was.id)
      if (auto restored = restore_tensor(session, Slot{at}, tensor); !restored) return restored;
    if (!session.at(Slot{at}).live()) session.free_slots.push_back(Slot{at});
  }
  std::ranges::reverse(session.free_slots);
  return {};
}

Result<void> Restorer::restore_tensor(Session& session, Slot slot, const TensorRecord& record) {
  const TensorState& was = record.state;
  const TensorRarities& rare = record.rarities;
  Tensor& tensor = session.at(slot);
  const auto bad = [&](const std::string& what) {
    return damaged(
        fmt::format("tensor {} of session {}: {}", index(slot), static_cast<std::uint32_t>(session.id), what));
  };
  if (was.incarnation > shm::kIncarnationMask) return bad(fmt::format("its incarnation is {}", was.incarnation));
  tensor.incarnation = was.incarnation;
  if (was.number == 0) return {};
  ++counts_.restored.tensors;
  if ((was.flags & kUnderWay) != 0) ++counts_.restored.transfers;
  const HomeTier home{tiers_.home_level, tiers_.home().options.capacity_bytes};
  if (const std::string damage = damage_of(record, home); !damage.empty()) return bad(damage);
  const tier::Extent text{record.facts.text, record.facts.text_bytes()};
  if (!ledger_.texts.is_free(text)) return bad("its name overlaps another's");
  ledger_.texts.take(text);
  tensor.bytes = record.facts.bytes;
  tensor.number = was.number;
  tensor.version = was.version;
  tensor.offset = was.offset;
  tensor.first_checksum = was.first_checksum;
  tensor.device = was.device;
  tensor.valid = was.valid & was.extents;
  tensor.published = static_cast<Level>(was.published);
  tensor.pinned = static_cast<Level>(was.pinned);
  const bool by_one = session.is_share() && tensor.pinned != Level::kNone;
  if ((rare.pinner != 0) != by_one) return bad("it is pinned by one session of a share, and is in none, or not pinned");
  if (by_one && session.find_member(SessionId{rare.pinner}) == nullptr)
    tensor.pinned = Level::kNone;  // it did not survive
  else
    tensor.pinner = SessionId{rare.pinner};
  tensor.holder = SessionId{rare.holder};
  if (rare.holder != 0 && (!session.is_share() || tensor.published == Level::kNone))
    return bad("it is held by one session of a share, and is in none, or is not published");
  tensor.written = (was.flags & kWritten) != 0;
  tensor.lost = (was.flags & kLost) != 0;
  tensor.torn = (was.flags & kTorn) != 0;
  tensor.deleted = (was.flags & kDeleted) != 0;
  tensor.forget = (was.flags & kForget) != 0;
  tensor.home_bad = (was.flags & kHomeBad) != 0;
  for (const Level level : {Level::kDevice, Level::kMemory}) {
    if ((was.extents & bit(level)) == 0) continue;
    const TierId tier = tiers_.tier_index(tensor, level);
    if (index(tier) >= tiers_.size() || tiers_[tier].level != level)
      return bad("it has a copy in a tier that is not there");
    Place& place = *session.places[tier];
    const tier::Extent extent = tensor.extent(level);
    const bool in_seam = extent.offset >= tier::kSeamsBegin;
    if (in_seam ? !copies_.restore_in_seam(place, extent) : !place.space.is_free(extent))
      return bad("its extent overlaps another, or lies outside its tier");
    if (!in_seam) place.space.take(extent);
    place.policy->arrived(slot, turn_.now);
    tiers_[tier].used_bytes += tensor.extent_bytes();
    tensor.extents |= bit(level);
    if (rare.sliding != static_cast<std::uint8_t>(level)) continue;
    const std::uint64_t apart = tensor.offset[index(level)] - rare.slide_offset;
    const tier::Extent fresh{rare.slide_offset, std::min(tensor.extent_bytes(), apart)};
    if (!place.space.is_free(fresh)) return bad("its extent slid into another's");
    place.space.take(fresh);
    tensor.begin_slide(level, {rare.slide_offset, rare.slid_bytes});
  }
  if ((was.extents & bit(Level::kBlock)) != 0)
    if (auto restored = restore_home(tensor, record); !restored) return bad(restored.error().message);
  if (may_still_land(tensor, was)) tensor.activity = Activity::kLanding;
  if (!tensor.deleted) {
    if (!session.names.insert(slot, records_.names_of(session))) return bad("another has its name");
    ++session.tensor_count;
    session.tensor_bytes += tensor.bytes;
  }
  return {};
}

Result<void> Restorer::restore_home(Tensor& tensor, const TensorRecord& record) {
  const TensorRarities& rare = record.rarities;
  const auto bad = [](const char* what) { return fail(ErrorCode::kFailedPrecondition, what); };
  if (tiers_.block == kNoTier) return bad("its home is on a block tier, and there is none");
  const tier::Extent whole = tensor.extent(Level::kBlock);
  const auto recorded = rare.piece_count == 0 ? std::span(&whole, 1) : std::span(rare.pieces).first(rare.piece_count);
  tier::Pieces pieces;
  for (const tier::Extent& piece : recorded) {
    if (!block_.space.is_free(piece)) return bad("its home overlaps another, or lies outside the block tier");
    block_.space.take(piece);
    pieces.push(piece);
  }
  const tier::Extent sums{record.state.first_checksum, tier::chunk_count(tensor.bytes)};
  if (pieces.bytes() != tensor.extent_bytes()) return bad("its home is not as large as it");
  if (pieces[0].offset != tensor.offset[index(Level::kBlock)]) return bad("its home is in two places");
  if (!block_.checksums.is_free(sums)) return bad("its checksums are another's, or lie outside their table");
  block_.checksums.take(sums);
  tensor.set_pieces(pieces);
  tensor.extents |= bit(Level::kBlock);
  tiers_[tiers_.block].used_bytes += tensor.extent_bytes();
  return {};
}

// By its record: the former daemon may have begun to read the tensor from the block tier, which is the only place that
// has its bytes. Its other extents are what it is read into. (It was recorded before any read began, and until all had
// ended; what a successor that was killed too found in this state it recorded in the same way.)
bool Restorer::may_still_land(const Tensor& tensor, const TensorState& was) const {
  constexpr std::uint8_t kMapped = bit(Level::kDevice) | bit(Level::kMemory);
  if (!links_.former_at_work || planted(Plant::kFormerTargetReused)) return false;
  return (was.flags & kUnderWay) != 0 && tensor.written && tensor.sliding == Level::kNone &&
         tensor.valid == bit(Level::kBlock) && (tensor.extents & kMapped) != 0;
}

// Before anything is given out there.
void Restorer::mark_gone(const LostSegment& lost) {
  Holdings* const session = registry_.find(lost.space);
  if (session == nullptr) return;
  const TierId tier = lost.tier;
  TERRACE_CHECK(tiers_[tier].level == Level::kDevice);
  Place& place = *session->places[tier];
  place.gone.push_back(lost.extent);
  for (const tier::Extent& free : place.space.free_within(lost.extent)) place.space.retire(free);
  tiers_[tier].loss = lost.why;
}

}  // namespace terrace::engine
