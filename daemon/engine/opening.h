// SPDX-License-Identifier: Apache-2.0
// Sessions come and go, and join and leave shares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/admission/grants.h"
#include "engine/admission/session.h"
#include "engine/budget/budget.h"
#include "engine/links/links.h"
#include "engine/requests/requests.h"
#include "engine/residency/copies.h"
#include "engine/residency/ledger.h"
#include "engine/residency/lives.h"
#include "engine/residency/records.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/wakes.h"
#include "engine/residency/words.h"
#include "engine/values/options.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Opening {
 public:
  Opening(const Options& options, Turn& turn, Links& links, Ledger& ledger, Registry& registry, Requests& requests,
          Tiers& tiers, Wakes& wakes, Records& records, Copies& copies, Words& words, Transfers& transfers,
          Lives& lives, Budget& budget, Grants& grants)
      : options_(options),
        turn_(turn),
        links_(links),
        ledger_(ledger),
        registry_(registry),
        requests_(requests),
        tiers_(tiers),
        wakes_(wakes),
        records_(records),
        copies_(copies),
        words_(words),
        transfers_(transfers),
        lives_(lives),
        budget_(budget),
        grants_(grants) {}

  Result<std::vector<std::uint64_t>> floors_of(const OpenSession& open) const;
  std::unique_ptr<Policy> policy_for(TierId tier) const;
  void join_now(RequestId request, const OpenSession& open);
  void pump_opens();
  void give_up_guarantees(TierId tier);
  Result<void> check_share(const OpenSession& open);
  std::size_t records_used() const;
  void leave(Session& session, SessionId id, const Error& why);
  void finish_session(Session& session);

 private:
  void open_now(RequestId request, const OpenSession& open, const std::vector<std::uint64_t>& floors);
  SessionOpened opened(const Session& session, const Member& member) const;
  Session* find_share(const Tenant& tenant, const std::string& name);
  static Member member_of(const OpenSession& open, SessionId id);
  Member& join(Session& share, const OpenSession& open);
  void bereave(Session& session, Slot slot);
  void end_session(Session& session, const Error& why);

  const Options& options_;
  Turn& turn_;
  Links& links_;
  Ledger& ledger_;
  Registry& registry_;
  Requests& requests_;
  Tiers& tiers_;
  Wakes& wakes_;
  Records& records_;
  Copies& copies_;
  Words& words_;
  Transfers& transfers_;
  Lives& lives_;
  Budget& budget_;
  Grants& grants_;
};

}  // namespace terrace::engine
