// SPDX-License-Identifier: Apache-2.0
// Shares (DESIGN decision 3): sessions join and leave, and wait for each other's leases. Members read by their own
// words; who writes has the tensor alone.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "engine/engine_impl.h"
#include "engine/values/planted.h"

namespace terrace::engine {

Session* EngineImpl::find_share(const Tenant& tenant, const std::string& name) {
  for (auto& [id, session] : sessions_)
    if (session->is_share() && session->share == name && session->tenant == tenant &&
        session->life == Session::Life::kOpen)
      return session.get();
  return nullptr;
}

// Whether the share is there as it is asked for. A share of another tenant is none.
Result<void> EngineImpl::check_share(const OpenSession& open) {
  const ShareAccess& access = *open.share;
  const bool there = find_share(open.tenant, access.name) != nullptr;
  if (access.name.empty() || access.name.size() > kShareNameBytesMax)
    return fail(ErrorCode::kInvalidArgument, fmt::format("a share's name has 1 to {} bytes, this one has {}",
                                                         kShareNameBytesMax, access.name.size()));
  // It is a record's text, ended by a zero, and what people and messages name the share by.
  if (!is_utf8(access.name) || std::ranges::any_of(access.name, [](unsigned char c) { return c < ' ' || c == 0x7F; }))
    return fail(ErrorCode::kInvalidArgument, "a share's name is UTF-8 without control characters");
  if (access.create && there)
    return fail(ErrorCode::kAlreadyExists,
                fmt::format("there is a share '{}' already: open it, or use another name", access.name));
  if (!access.create && !there)
    return fail(
        ErrorCode::kNotFound,
        fmt::format("there is no share '{}': one session creates it, and it ends with its last session", access.name));
  if (!access.create && !open.guarantees.empty())
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the guarantees of share '{}' were stated when it was created: open it without", access.name));
  return {};
}

Member EngineImpl::member_of(const OpenSession& open, SessionId id) {
  Member member;
  member.id = id;
  member.table = open.table;
  member.label = open.label;
  member.token = open.token;
  member.pid = open.pid;
  member.maps_segments = open.maps_segments;
  member.writes = !open.share || open.share->write || open.share->create;
  return member;
}

std::size_t EngineImpl::take_record() {
  TERRACE_CHECK(!free_records_.empty());  // those that wait to be open count for the bound too
  const std::size_t record = *free_records_.begin();
  free_records_.erase(free_records_.begin());
  return record;
}

// How many records the open sessions have, and those that wait to be open will.
std::size_t EngineImpl::records_used() const {
  std::size_t used = sessions_.size() + part_of_.size();
  for (const PendingOpen& open : opens_) used += open.open.share ? 2 : 1;
  return used;
}

// One member more, which finds in its table what the others see in theirs.
Member& EngineImpl::join(Session& share, const OpenSession& open) {
  const SessionId id{next_session_++};
  Member member = member_of(open, id);
  member.record = take_record();
  show_all(share, member);
  share.members.push_back(std::move(member));
  part_of_.emplace(id, share.id);
  touch(share);
  return share.members.back();
}

// A member ends: by its death, or because it closes. Nobody else's leases are touched; the last one takes the share
// with it.
void EngineImpl::leave(Session& session, SessionId id, const Error& why) {
  if (!session.is_share() || session.members.size() == 1) return end_session(session, why);
  while (true) {
    const auto its = std::ranges::find(session.admissions, id, &Admission::member);
    if (its == session.admissions.end()) break;
    fail_admission(session, *its, why);
  }
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (tensor.live() && tensor.holder == id) bereave(session, Slot{at});
    if (tensor.live() && tensor.pinner == id) unpin(session, Slot{at});
  }
  const auto member = std::ranges::find(session.members, id, &Member::id);
  freed_records_.push_back(member->record);
  if (member->close_request) answer(*member->close_request, ReplyBody{Done{}});
  session.members.erase(member);
  part_of_.erase(id);
  output_.gone.push_back(id);
  ++session.events;  // its leases are over
  stir(session);
  opens_stirred_ = true;
}

// Its writer is gone. What it was about to write is neither the old content nor the new.
void EngineImpl::bereave(Session& session, Slot slot) {
  Tensor& tensor = session.at(slot);
  Member& writer = *session.find_member(tensor.holder);
  const shm::Word word = writer.table.load(slot);
  const bool scribbled = word.incarnation != tensor.incarnation || word.state != shm::State::kResident;
  if (scribbled || word.dirty) tensor.valid = bit(tensor.published);
  if ((scribbled || word.torn || word.writers != 0) && !planted(Plant::kBereavedWhole)) tensor.torn = true;
  tensor.published = Level::kNone;
  tensor.holder = SessionId{};
  tensor.claimed = true;
  touch(session, slot);
  if (tensor.torn)
    forget(session, slot);
  else if (tensor.idle() && tensor.admission == 0 && !tensor.deleted)
    rest(session, slot);
}

// Who holds leases in a share waits for nobody else's there: they may be waiting for its.
bool EngineImpl::must_not_wait(Session& session, const Admission& admission) const {
  if (!session.is_share()) return false;
  const Member* asks = session.find_member(admission.member);
  return asks != nullptr && leases_of(session, *asks) != 0;
}

// Whether somebody else holds a lease on one of these.
bool EngineImpl::others_hold(Session& session, const Admission& admission, const std::vector<Slot>& slots) const {
  return std::ranges::any_of(slots, [&](Slot slot) {
    const Tensor& tensor = session.at(slot);
    return std::ranges::any_of(session.members, [&](const Member& member) {
      return member.id != admission.member && Session::shows(member, tensor) && member.table.load(slot).leased();
    });
  });
}

std::uint64_t EngineImpl::leases_of(const Session& session, const Member& member) const {
  std::uint64_t leases = 0;
  for (std::uint32_t at = 0; at < session.tensors.size(); ++at) {
    const Tensor& tensor = session.tensors[at];
    if (!tensor.live() || tensor.published == Level::kNone || !Session::shows(member, tensor)) continue;
    const shm::Word word = member.table.load(Slot{at});
    leases += word.readers + (session.is_shared(tensor) ? 0 : word.writers);
  }
  return leases;
}

Result<Session*> EngineImpl::session_to_write(SessionId id) {
  auto session = open_session(id);
  if (!session || (*session)->find_member(id)->writes) return session;
  return fail(ErrorCode::kPermissionDenied,
              fmt::format("this session opened share '{}' for reading: open it for writing", (*session)->share));
}

// A tensor of the set is leased elsewhere, or by others in a way that leaves no room for this. Waits if others alone
// hold it up, and if they cannot be waiting for this session in turn: who waits for others holds nothing in the share.
Result<void> EngineImpl::await_others(Session& session, Admission& admission, Slot slot) {
  Tensor& tensor = session.at(slot);
  const std::string& place = tiers_[tier_index(tensor, tensor.published)].leases.name;
  const Member* asks = session.find_member(admission.member);
  const bool waits = session.is_share() && admission.is(Admission::Kind::kAcquire);
  const bool own = asks != nullptr && Session::shows(*asks, tensor) && asks->table.load(slot).leased();
  if (own || !session.is_share())
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tensor '{}' is leased at {}: release it first", name(session, slot), place));
  if (!waits)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tensor '{}' is leased at {} by other sessions of share '{}': ask again when they are done",
                            name(session, slot), place, session.share));
  if (must_not_wait(session, admission))
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("tensor '{}' is leased by other sessions of share '{}', and this one holds leases in it: "
                            "release them before waiting, or take what is used together in one set",
                            name(session, slot), session.share));
  const Handle handle{slot, tensor.incarnation};
  if (std::ranges::find(admission.awaited, handle) == admission.awaited.end()) admission.awaited.push_back(handle);
  if (!waits_behind(admission, tensor)) tensor.awaited_by = admission.id;
  show_wanted(session, slot);
  if (leased(session, slot)) return {};
  ++session.events;  // it ended a moment ago, and did not ring
  stir(session);
  return {};
}

}  // namespace terrace::engine
