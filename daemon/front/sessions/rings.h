// SPDX-License-Identifier: Apache-2.0
// Requests through trainers' rings, and their answers.
#pragma once

#include <cstdint>

#include "base/time.h"
#include "front/reactor/engine_loop.h"
#include "front/reactor/reactor.h"
#include "front/sessions/polled_rings.h"
#include "front/sessions/session.h"
#include "front/sessions/sessions.h"
#include "shm/layout.h"
#include "terrace/error.h"

namespace terrace::front {

// The reactor thread's. What is borrowed outlives it.
class Rings {
 public:
  // No request waits longer than `request_timeout`.
  Rings(Reactor& reactor, EngineLoop& loop, Sessions& sessions, PolledRings& polled, Duration request_timeout)
      : reactor_(reactor), loop_(loop), sessions_(sessions), polled_(polled), request_timeout_(request_timeout) {}

  // What its trainer rings is heard from now on.
  Result<void> watch_doorbell(Session& session);
  // True: there is something to do, and no time to sleep. False: whoever asks from now on rings.
  bool poll(Duration longest);
  // So many requests were asked of a former daemon before.
  std::uint64_t resubmitted() const { return resubmitted_; }

 private:
  void doorbell_rang(Session& session);
  void take_submissions(Session& session);
  void take_submission(Session& session, const shm::Submission& submission);
  void answer(SessionId id, const shm::Submission& submission, const engine::Reply& reply);
  void complete(Session& session, const shm::Submission& submission, const Result<engine::ReplyBody>& result,
                RequestId request = {});

  Reactor& reactor_;
  EngineLoop& loop_;
  Sessions& sessions_;
  PolledRings& polled_;
  const Duration request_timeout_;
  std::uint64_t resubmitted_ = 0;
};

}  // namespace terrace::front
