// SPDX-License-Identifier: Apache-2.0
#include "front/gateway/tokens.h"

#include "base/check.h"

namespace terrace::front {

void Tokens::add(const Token& token, SessionId session, const Tenant& tenant, Time now) {
  const std::scoped_lock lock(mutex_);
  const bool fresh = tickets_.emplace(token, Ticket{session, tenant, now}).second;
  TERRACE_CHECK(fresh);
}

void Tokens::forget(const Token& token) {
  const std::scoped_lock lock(mutex_);
  tickets_.erase(token);
}

Result<SessionId> Tokens::authenticate(const Token& token, const Tenant& tenant, Time now) {
  const std::scoped_lock lock(mutex_);
  const auto found = tickets_.find(token);
  if (found == tickets_.end() || found->second.tenant != tenant)
    return fail(ErrorCode::kUnauthenticated, "the token is not of an open session of this tenant; open a session");
  found->second.last_used = now;
  return found->second.session;
}

std::vector<SessionId> Tokens::unused_for(Duration longest, Time now) const {
  std::vector<SessionId> unused;
  const std::scoped_lock lock(mutex_);
  for (const auto& [token, ticket] : tickets_)
    if (now - ticket.last_used >= longest) unused.push_back(ticket.session);
  return unused;
}

}  // namespace terrace::front
