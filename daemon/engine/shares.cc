// SPDX-License-Identifier: Apache-2.0
// Shares: sessions join, and find in their tables what the others see. Members read by their own words; who writes has
// the tensor alone.
#include "engine/opening.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace terrace::engine {

Session* Opening::find_share(const Tenant& tenant, const std::string& name) {
  for (auto& [id, session] : registry_.all)
    if (session->is_share() && session->share == name && session->tenant == tenant &&
        session->life == Session::Life::kOpen)
      return &session_of(*session);
  return nullptr;
}

// Whether the share is there as it is asked for. A share of another tenant is none.
Result<void> Opening::check_share(const OpenSession& open) {
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

Member Opening::member_of(const OpenSession& open, SessionId id) {
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

// How many records the open sessions have, and those that wait to be open will.
std::size_t Opening::records_used() const {
  std::size_t used = registry_.all.size() + registry_.part_of.size();
  for (const PendingOpen& open : budget_.opens) used += open.open.share ? 2 : 1;
  return used;
}

// One member more, which finds in its table what the others see in theirs.
Member& Opening::join(Session& share, const OpenSession& open) {
  const SessionId id{ledger_.next_session++};
  Member member = member_of(open, id);
  member.record = records_.take_record();
  words_.show_all(share, member);
  share.members.push_back(std::move(member));
  registry_.part_of.emplace(id, share.id);
  records_.touch(share);
  return share.members.back();
}

}  // namespace terrace::engine
