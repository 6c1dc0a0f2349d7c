// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/polled_rings.h"

#include <algorithm>

#include "base/check.h"

namespace terrace::front {
namespace {

// False: it is to be polled longer.
bool leave(Session& session, Time now, bool at_work) {
  const bool in_vain = session.busy_poll.was_in_vain(now);
  if (!in_vain && !at_work) return false;
  session.region->set_polled(false);
  if (session.region->has_submission()) {  // just now, and perhaps without the doorbell
    session.region->set_polled(true);
    return false;
  }
  session.busy_poll.end(in_vain);
  return true;
}

}  // namespace

void PolledRings::asked(Session& session, Time now, bool at_work) {
  TERRACE_CHECK(session.connection != nullptr);
  session.busy_poll.asked(now);
  if (!may_poll_ || session.busy_poll.polls() || !session.busy_poll.is_worth() || at_work) return;
  session.busy_poll.begin();
  session.region->set_polled(true);
  polled_.push_back(&session);
}

Session* PolledRings::next_asker() {
  const auto asks = std::ranges::find_if(polled_, [](const Session* each) { return each->region->has_submission(); });
  if (asks == polled_.end()) return nullptr;
  Session* const session = *asks;
  std::rotate(asks, asks + 1, polled_.end());
  return session;
}

void PolledRings::leave_idle(Time now, bool at_work) {
  std::erase_if(polled_, [&](Session* each) { return leave(*each, now, at_work); });
}

void PolledRings::forget(Session& session) { std::erase(polled_, &session); }

}  // namespace terrace::front
