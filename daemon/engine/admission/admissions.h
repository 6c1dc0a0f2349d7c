// SPDX-License-Identifier: Apache-2.0
// A set of tensors is brought to a place, all or nothing: from the request to the reservation.
#pragma once

#include <vector>

#include "engine/admission/checks.h"
#include "engine/admission/creation.h"
#include "engine/admission/grants.h"
#include "engine/admission/queues.h"
#include "engine/admission/session.h"
#include "engine/admission/sessions.h"
#include "engine/budget/budget.h"
#include "engine/links/links.h"
#include "engine/requests/requests.h"
#include "engine/residency/copies.h"
#include "engine/residency/holders.h"
#include "engine/residency/lives.h"
#include "engine/residency/marks.h"
#include "engine/residency/records.h"
#include "engine/residency/tiers.h"
#include "engine/residency/transfers.h"
#include "engine/residency/words.h"
#include "engine/space/evictions.h"
#include "engine/space/rooms.h"

namespace terrace::engine {

class Admissions {
 public:
  Admissions(Links& links, Marks& marks, Requests& requests, Tiers& tiers, Records& records, Copies& copies,
             Words& words, Holders& holders, Transfers& transfers, Lives& lives, Budget& budget, Evictions& evictions,
             Rooms& rooms, Sessions& sessions, Queues& queues, Checks& checks, Grants& grants, Creation& creation)
      : links_(links),
        marks_(marks),
        requests_(requests),
        tiers_(tiers),
        records_(records),
        copies_(copies),
        words_(words),
        holders_(holders),
        transfers_(transfers),
        lives_(lives),
        budget_(budget),
        evictions_(evictions),
        rooms_(rooms),
        sessions_(sessions),
        queues_(queues),
        checks_(checks),
        grants_(grants),
        creation_(creation) {}

  void admit(const Request& request, Admission&& admission, bool with_block);
  void try_admissions(Session& session, bool prefetches);

 private:
  void try_start(Session& session, Admission& admission);
  void go_before_write_backs(Session& session, const Admission& admission, const std::vector<Slot>& slots, bool ready);
  Result<bool> ready_to_start(Session& session, Admission& admission, const std::vector<Slot>& slots);
  bool wants_staging(const Admission& admission, const Tensor& tensor, shm::Mode mode) const;
  bool staging_grows(Session& session, const Admission& admission, const std::vector<Slot>& slots);
  Room reserve(Session& session, Admission& admission, const std::vector<Slot>& slots, Error& refusal);
  Result<bool> claim_all(Session& session, Admission& admission, const std::vector<Slot>& slots);
  void assemble(Session& session, Admission& admission, const std::vector<Slot>& slots);

  Links& links_;
  Marks& marks_;
  Requests& requests_;
  Tiers& tiers_;
  Records& records_;
  Copies& copies_;
  Words& words_;
  Holders& holders_;
  Transfers& transfers_;
  Lives& lives_;
  Budget& budget_;
  Evictions& evictions_;
  Rooms& rooms_;
  Sessions& sessions_;
  Queues& queues_;
  Checks& checks_;
  Grants& grants_;
  Creation& creation_;
  Missing missing_;  // of the set that is being looked at; its memory is used again
};

}  // namespace terrace::engine
