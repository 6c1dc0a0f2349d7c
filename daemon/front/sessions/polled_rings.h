// SPDX-License-Identifier: Apache-2.0
// The rings that are polled for a moment before the reactor sleeps: of trainers whose requests follow one another
// closely (busy_poll.h). A small miss is then answered without a system call on either side. Never where an answer
// waits for a disk or a copier, which would be kept from its processor, and never on one processor.
#pragma once

#include <vector>

#include "base/time.h"
#include "front/sessions/session.h"

namespace terrace::front {

// The reactor thread's. Sessions are borrowed until forget(), or until leave_idle() lets them go.
class PolledRings {
 public:
  // There is another processor for who asks.
  void allow(bool may_poll) { may_poll_ = may_poll; }
  bool empty() const { return polled_.empty(); }
  // Its trainer asked for something. `at_work`: a disk or a copier has something to do.
  void asked(Session& session, Time now, bool at_work);
  // One that has asked again; its neighbours are looked at first the next time. Null: none has.
  Session* next_asker();
  // Lets those go that were polled in vain, or all where somebody is `at_work`: they ring from now on.
  void leave_idle(Time now, bool at_work);
  void forget(Session& session);

 private:
  std::vector<Session*> polled_;  // open ones whose trainer needs no doorbell now
  bool may_poll_ = false;
};

}  // namespace terrace::front
