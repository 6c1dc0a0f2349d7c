// SPDX-License-Identifier: Apache-2.0
// Who may act for which session: whoever shows its token, and is of its tenant.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "front/gateway/gateway.h"
#include "terrace/error.h"

namespace terrace::front {

// Thread-safe.
class Tokens {
 public:
  // Of a session that is open from now on; no two have the same.
  void add(const Token& token, SessionId session, const Tenant& tenant, Time now);
  // Nobody acts for it any more; again: nothing happens.
  void forget(const Token& token);
  // The session; counts as use. kUnauthenticated: there is none of this tenant.
  Result<SessionId> authenticate(const Token& token, const Tenant& tenant, Time now);
  // Sessions whose tokens nobody has used for so long.
  std::vector<SessionId> unused_for(Duration longest, Time now) const;

 private:
  struct Ticket {
    SessionId session{};
    Tenant tenant;
    Time last_used{};
  };

  mutable std::mutex mutex_;
  std::map<Token, Ticket> tickets_;
};

}  // namespace terrace::front
