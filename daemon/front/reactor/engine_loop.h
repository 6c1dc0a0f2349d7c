// SPDX-License-Identifier: Apache-2.0
// The engine and the mover, turned by the reactor: what was asked and what was done goes in, and what comes out goes to
// whom it is for.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/engine.h"
#include "front/gateway/gateway.h"
#include "front/reactor/reactor.h"
#include "mover/mover.h"

namespace terrace::front {

// For whom the engine's output is, and the mover's, where it is not a reply to whoever asked.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // A transfer ended with an error: a tier may have failed.
  virtual void transfer_failed() = 0;
  // To be handed to the engine, sooner or later.
  virtual void segment_done(const mover::SegmentDone& done) = 0;
  // To be handed to the mover, sooner or later.
  virtual void ordered(const mover::SegmentOrder& order) = 0;
  virtual void observed(const std::vector<foresight::Observation>& seen) = 0;
  virtual void lost(const std::vector<engine::Loss>& losses) = 0;
  virtual void changed(const std::vector<engine::OutageNews>& outages) = 0;
  // Nothing is left of a session: before anybody hears that it is closed, and after.
  virtual void closed(SessionId id) = 0;
  virtual void gone(SessionId id) = 0;
  // A status on its way to whoever asked for it.
  virtual void complete(engine::Status& status) = 0;
  virtual void pressed(const std::vector<engine::Pressure>& pressure) = 0;
  // Nothing is left to hand on for now.
  virtual void settled() = 0;
};

// The reactor thread's, except next_request(). All are borrowed, and outlive it.
class EngineLoop {
 public:
  EngineLoop(Reactor& reactor, mover::Mover& mover, Receiver& receiver)
      : reactor_(reactor), mover_(mover), receiver_(receiver) {}

  // Once, before all that follows.
  void begin(std::unique_ptr<engine::Engine> engine) { engine_ = std::move(engine); }
  engine::Engine& engine() { return *engine_; }
  mover::Mover& mover() { return mover_; }
  Time now() const { return reactor_.now(); }

  // A number that no other request has; any thread.
  RequestId next_request() { return RequestId{++last_request_}; }
  // `answer` is called once, from pump().
  void submit(engine::Request request, Gateway::Answer answer);
  // Until nothing comes out any more.
  void pump();

 private:
  bool pump_once();
  void answer(std::vector<engine::Reply>& replies);

  Reactor& reactor_;
  mover::Mover& mover_;
  Receiver& receiver_;
  std::unique_ptr<engine::Engine> engine_;
  engine::Output output_memory_;  // of the output before: its vectors are used again
  std::unordered_map<RequestId, Gateway::Answer> answers_;
  std::atomic<std::uint64_t> last_request_ = 0;
};

}  // namespace terrace::front
