// SPDX-License-Identifier: Apache-2.0
// Before it sleeps the reactor polls for a moment the rings of trainers whose requests follow one another closely
// (busy_poll.h): a small miss is then answered without a system call on either side. Never where an answer waits for a
// disk or a copier, which would be kept from its processor, and never on one processor.
#include <algorithm>

#include "base/check.h"
#include "front/host.h"

namespace terrace::front {
namespace {

// Between two looks: the other end of the ring has its cache line to itself.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Host::asked(Session& session) {
  TERRACE_CHECK(session.connection != nullptr);
  session.busy_poll.asked(now());
  if (!may_poll_ || session.busy_poll.polls() || !session.busy_poll.is_worth() || mover_->in_flight() != 0) return;
  session.busy_poll.begin();
  session.region->set_polled(true);
  polled_.push_back(&session);
}

// True: there is something to do, and no time to sleep. False: whoever asks from now on rings.
bool Host::poll_rings(Duration longest) {
  const Time begin = now();
  while (!polled_.empty()) {
    const auto asks = std::ranges::find_if(polled_, [](const Session* each) { return each->region->has_submission(); });
    if (asks != polled_.end()) {
      Session& session = **asks;
      std::rotate(asks, asks + 1, polled_.end());  // its neighbours are looked at first the next time
      take_submissions(session);
      return true;
    }
    if (reactor_->ring().has_work() || now() - begin >= longest) return true;
    std::erase_if(polled_, [this](Session* each) { return leave_ring(*each); });
    pause();
  }
  return false;
}

// False: it is to be polled longer.
bool Host::leave_ring(Session& session) {
  const bool in_vain = session.busy_poll.was_in_vain(now());
  if (!in_vain && mover_->in_flight() == 0) return false;
  session.region->set_polled(false);
  if (session.region->has_submission()) {  // just now, and perhaps without the doorbell
    session.region->set_polled(true);
    return false;
  }
  session.busy_poll.end(in_vain);
  return true;
}

void Host::forget_ring(Session& session) { std::erase(polled_, &session); }

}  // namespace terrace::front
