// SPDX-License-Identifier: Apache-2.0
// The engine as one object: calls come in, each goes down into the rooms that it concerns, and whoever was woken is
// looked at until nobody is left. The rooms are its members, bottom up: each is given those below that it needs, and no
// other.
#pragma once

#include <memory>
#include <span>

#include "engine/admission/admissions.h"
#include "engine/admission/ahead.h"
#include "engine/admission/checks.h"
#include "engine/admission/creation.h"
#include "engine/admission/grants.h"
#include "engine/admission/queues.h"
#include "engine/admission/sessions.h"
#include "engine/budget/budget.h"
#include "engine/catalog/memory.h"
#include "engine/engine.h"
#include "engine/laws.h"
#include "engine/links/links.h"
#include "engine/opening.h"
#include "engine/outages.h"
#include "engine/outcomes.h"
#include "engine/reports.h"
#include "engine/requests/requests.h"
#include "engine/requests/waiting.h"
#include "engine/residency/block_space.h"
#include "engine/residency/copies.h"
#include "engine/residency/holders.h"
#include "engine/residency/ledger.h"
#include "engine/residency/lives.h"
#include "engine/residency/lookup.h"
#include "engine/residency/marks.h"
#include "engine/residency/records.h"
#include "engine/residency/registry.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/trials.h"
#include "engine/residency/wakes.h"
#include "engine/residency/words.h"
#include "engine/restorer.h"
#include "engine/service.h"
#include "engine/space/cleaning.h"
#include "engine/space/departures.h"
#include "engine/space/evictions.h"
#include "engine/space/reclaiming.h"
#include "engine/space/rooms.h"
#include "engine/space/windows.h"
#include "engine/steps/steps.h"
#include "engine/tensors.h"
#include "engine/values/counts.h"
#include "engine/values/options.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class StateMachine final : public Engine {
 public:
  StateMachine(Options options, CatalogMemory& catalog);
  // One of them, before anything else.
  void begin_catalog();
  Result<void> restore_from(std::span<const Survivor> survivors, std::span<const LostSegment> lost);

  void submit(Time now, Request request) override;
  void cancel(Time now, RequestId request) override;
  void transfer_done(Time now, const mover::TransferDone& done) override;
  void segment_done(Time now, const mover::SegmentDone& done) override;
  void accessed(Time now, SessionId session, std::span<const Access> accesses, std::uint64_t fast_leases) override;
  void plan(Time now, SessionId session, std::shared_ptr<const foresight::Plan> plan) override;
  void lease_ended(Time now, SessionId session) override;
  void session_died(Time now, SessionId session) override;
  void answering(RequestId request, std::uint32_t position) override { records_.answering(request, position); }
  void answered(RequestId request) override { records_.answered(request); }
  void former_ended(Time now) override;
  void tier_failed(Time now, TierId tier, const Error& why) override;
  void tick(Time now) override;
  Time next_deadline() const override;
  void take_output(Output& output) override;
  Status status() const override { return reports_.status(); }
  void check_invariants(std::span<const SessionId> scribbled) const override { laws_.check(scribbled); }

 private:
  void run();
  void pump(Session& session);
  void expire();
  void expire_one(RequestId request, const Waiting& waiting);
  void watch_pressure();

  const Options options_;
  CatalogMemory& catalog_;
  Turn turn_;
  Counts counts_;
  Marks marks_;
  Ledger ledger_;
  BlockSpace block_;
  Registry registry_;

  Requests requests_{options_, turn_};

  Tiers tiers_{options_};
  Links links_{.scheduler = {tiers_.links(), options_.transfers_in_flight_max, options_.weights},
               .write_budget = WriteBudget(options_.tiers.back().write_budget_bytes_per_day),
               .outage = Outage(options_.outage_pauses)};
  Wakes wakes_{registry_};
  Records records_{options_, catalog_, ledger_, registry_, tiers_};
  Lookup lookup_{marks_, records_};
  Copies copies_{catalog_, turn_, counts_, ledger_, block_, tiers_, records_};
  Words words_{tiers_, records_, copies_};
  Holders holders_{records_};
  Transfers transfers_{turn_, links_, tiers_, wakes_, records_, copies_, words_};
  Trials trials_{options_, turn_, links_, ledger_, block_, tiers_, copies_};
  Lives lives_{catalog_, counts_, ledger_, records_, copies_, words_, transfers_};

  Budget budget_{turn_, registry_, tiers_, wakes_, records_, copies_, words_};

  Steps steps_{options_, turn_, counts_, registry_, tiers_, wakes_};

  Departures departures_{links_, tiers_, copies_, words_, transfers_, steps_};
  Windows windows_{links_, marks_, tiers_, words_, transfers_, budget_, departures_};
  Evictions evictions_{marks_, tiers_, copies_, words_, budget_, departures_, windows_};
  Cleaning cleaning_{options_, turn_, links_, registry_, tiers_, copies_, transfers_, budget_};
  Reclaiming reclaiming_{links_, tiers_, wakes_, words_, transfers_, budget_, windows_, evictions_};
  Rooms rooms_{marks_,     tiers_,  records_,    copies_,  words_,    holders_,
               transfers_, budget_, departures_, windows_, evictions_};

  Sessions sessions_{registry_};
  Queues queues_{turn_, counts_, links_, wakes_};
  Checks checks_{links_, tiers_, wakes_, records_, lookup_, words_, holders_};
  Grants grants_{turn_,    counts_,    links_, requests_, tiers_,      wakes_, records_, copies_, words_,
                 holders_, transfers_, lives_, steps_,    departures_, rooms_, queues_,  checks_};
  Creation creation_{options_, block_, registry_, requests_, tiers_, records_, copies_, lives_, rooms_, grants_};
  Admissions admissions_{links_, marks_,  requests_,  tiers_, records_,  copies_, words_,  holders_, transfers_,
                         lives_, budget_, evictions_, rooms_, sessions_, queues_, checks_, grants_,  creation_};
  Ahead ahead_{turn_,      counts_, links_, marks_,     tiers_,  lookup_, copies_, words_,
               transfers_, budget_, steps_, evictions_, queues_, checks_, grants_};

  Tensors tensors_{tiers_, records_, lives_, steps_, queues_, checks_, grants_};
  Opening opening_{options_, turn_,   links_, ledger_,    registry_, requests_, tiers_, wakes_,
                   records_, copies_, words_, transfers_, lives_,    budget_,   grants_};
  Outcomes outcomes_{counts_,    links_, tiers_,    records_, copies_, words_,
                     transfers_, steps_, cleaning_, queues_,  grants_};
  Outages outages_{turn_, links_, registry_, tiers_, wakes_, trials_, outcomes_};
  Reports reports_{turn_, counts_, links_, ledger_, block_, registry_, requests_, tiers_, holders_, budget_};
  Service service_{options_, catalog_,  counts_,     ledger_, registry_, requests_, tiers_,      wakes_,
                   records_, lookup_,   words_,      lives_,  budget_,   steps_,    departures_, sessions_,
                   queues_,  creation_, admissions_, ahead_,  tensors_,  opening_,  reports_};
  Restorer restorer_{options_, catalog_, turn_,  counts_,    links_, ledger_, block_,    registry_, tiers_,
                     records_, copies_,  words_, transfers_, lives_, budget_, sessions_, tensors_,  opening_};
  Laws laws_{catalog_, links_,   ledger_, block_,  registry_, requests_, tiers_,
             wakes_,   records_, words_,  budget_, windows_,  rooms_};
};

}  // namespace terrace::engine
