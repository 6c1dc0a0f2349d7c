// SPDX-License-Identifier: Apache-2.0
// The learners of all sessions, on a thread of their own: what the engine saw goes in, plans come out.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "config/config.h"
#include "engine/engine.h"
#include "foresight/learner.h"

namespace terrace::front {

class Foreseer {
 public:
  // Called on the foreseer's thread.
  using Deliver = std::function<void(SessionId, std::shared_ptr<const foresight::Plan>)>;

  Foreseer(foresight::Machine machine, Deliver deliver);
  // Waits for the plan that is being made.
  ~Foreseer();
  Foreseer(const Foreseer&) = delete;
  Foreseer& operator=(const Foreseer&) = delete;

  // Any thread, without waiting for anything. What is too much to keep of a session is lost, and the step of it that is
  // under way.
  void observe(const std::vector<foresight::Observation>& seen);
  // The session is gone.
  void forget(SessionId session);

 private:
  static constexpr std::size_t kBehindMax = 1'000'000;      // observations that wait
  static constexpr std::size_t kBehindOfOneMax = 500'000;   // of a session
  static constexpr std::size_t kKnownUsesMax = 16'000'000;  // by all learners; half a gibibyte

  void run(const std::stop_token& stop);
  void learn(const foresight::Observation& seen);
  void share();
  void bound_memory();
  void deliver(SessionId session, foresight::Plan plan);

  const foresight::Machine machine_;
  const Deliver deliver_;
  // The thread's own.
  std::map<SessionId, foresight::Learner> learners_;
  std::vector<std::shared_ptr<const foresight::Plan>> delivered_;

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<foresight::Observation> waiting_;
  std::map<SessionId, std::size_t> behind_;  // how many of them wait, by session
  std::set<SessionId> lost_;                 // of whom something was lost since the thread looked
  std::vector<SessionId> gone_;
  std::jthread thread_;  // last: it uses the others
};

// What can be planned with, of tiers and links as they are configured; of links that are not, a careful guess.
foresight::Machine machine_of(const engine::Options& options, const config::Links& links);

}  // namespace terrace::front
