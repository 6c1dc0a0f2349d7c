// SPDX-License-Identifier: Apache-2.0
// How admissions end: granted with all leases in one go, or refused with nothing taken.
#pragma once

#include <vector>

#include "engine/admission/checks.h"
#include "engine/admission/queues.h"
#include "engine/admission/session.h"
#include "engine/links/links.h"
#include "engine/requests/requests.h"
#include "engine/residency/copies.h"
#include "engine/residency/holders.h"
#include "engine/residency/lives.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/wakes.h"
#include "engine/residency/words.h"
#include "engine/space/departures.h"
#include "engine/space/rooms.h"
#include "engine/steps/steps.h"
#include "engine/values/counts.h"
#include "engine/values/turn.h"

namespace terrace::engine {

class Grants {
 public:
  Grants(Turn& turn, Counts& counts, Links& links, Requests& requests, Tiers& tiers, Wakes& wakes, Records& records,
         Copies& copies, Words& words, Holders& holders, Transfers& transfers, Lives& lives, Steps& steps,
         Departures& departures, Rooms& rooms, Queues& queues, Checks& checks)
      : turn_(turn),
        counts_(counts),
        links_(links),
        requests_(requests),
        tiers_(tiers),
        wakes_(wakes),
        records_(records),
        copies_(copies),
        words_(words),
        holders_(holders),
        transfers_(transfers),
        lives_(lives),
        steps_(steps),
        departures_(departures),
        rooms_(rooms),
        queues_(queues),
        checks_(checks) {}

  void grant(Session& session, Admission& admission);
  void fail_admission(Session& session, Admission& admission, Error error);
  void end_admission(Session& session, Admission& admission);
  void clear_wants(Session& session, Admission& admission);
  Error expired(Session& session, const Admission& admission) const;
  // One tensor further on its way; false when it is where it should be.
  bool advance(Session& session, Admission& admission, Slot slot);
  void arrived(Session& session, Slot slot);

 private:
  Result<void> lease_resident(Session& session, const Admission& admission, const std::vector<Slot>& slots);
  void note_leases(Session& session, const Admission& admission, const std::vector<Slot>& slots);
  void settle_granted(Session& session, const Admission& admission, Slot slot, shm::Mode mode);
  void count_waited(const Admission& admission, bool granted);

  Turn& turn_;
  Counts& counts_;
  Links& links_;
  Requests& requests_;
  Tiers& tiers_;
  Wakes& wakes_;
  Records& records_;
  Copies& copies_;
  Words& words_;
  Holders& holders_;
  Transfers& transfers_;
  Lives& lives_;
  Steps& steps_;
  Departures& departures_;
  Rooms& rooms_;
  Queues& queues_;
  Checks& checks_;
};

}  // namespace terrace::engine
