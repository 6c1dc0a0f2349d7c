// SPDX-License-Identifier: Apache-2.0
// What the engine saw goes to the learners, and their plans to the engine. While a session trains, its access logs are
// looked into often: a lease that is taken in shared memory wakes nobody, and a plan is followed by what is leased.
// Where it moves nothing, often enough to lose none.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "foresight/observation.h"
#include "front/reactor/engine_loop.h"
#include "front/reactor/reactor.h"
#include "front/sessions/sessions.h"
#include "front/training/foreseer.h"

namespace terrace::front {

// The reactor thread's. What is borrowed outlives it.
class Training {
 public:
  Training(Reactor& reactor, EngineLoop& loop, Sessions& sessions)
      : reactor_(reactor), loop_(loop), sessions_(sessions) {}

  // Once, and only where something is to be learned: plans come from now on.
  void learn(foresight::Machine machine);
  void observed(const std::vector<foresight::Observation>& seen);
  // A session that is gone.
  void forget(SessionId id);
  // How long the reactor may sleep.
  Duration until_next_drain(Duration longest) const;
  // Looks into the logs of those that train, if it is time.
  void drain();

 private:
  struct Trains {
    Time at{};           // its last step mark
    bool moves = false;  // its plan moves something
  };

  void planned(SessionId session, std::shared_ptr<const foresight::Plan> plan);
  Duration drain_period() const;

  Reactor& reactor_;
  EngineLoop& loop_;
  Sessions& sessions_;
  std::map<SessionId, Trains> trains_;  // sessions that marked a step lately
  Time last_drain_{};
  std::unique_ptr<Foreseer> foreseer_;  // last: its thread reaches the rest; none: nothing is learned
};

}  // namespace terrace::front
