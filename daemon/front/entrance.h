// SPDX-License-Identifier: Apache-2.0
// The way in for other threads: requests, tokens, and sessions whose clients map nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "front/gateway/gateway.h"
#include "front/gateway/pressure_watchers.h"
#include "front/gateway/refusals.h"
#include "front/gateway/tokens.h"
#include "front/node/node.h"
#include "front/reactor/engine_loop.h"
#include "front/reactor/reactor.h"
#include "front/sessions/arrivals.h"
#include "front/sessions/sessions.h"

namespace terrace::front {

class Entrance final : public Gateway {
 public:
  // All but `facts` are borrowed, and outlive it.
  struct Surroundings {
    const Node& node;
    Reactor& reactor;
    EngineLoop& loop;
    Tokens& tokens;
    Refusals& refusals;
    PressureWatchers& watchers;
    Sessions& sessions;
    Arrivals& arrivals;
  };
  Entrance(const Surroundings& surroundings, NodeFacts facts) : around_(surroundings), facts_(std::move(facts)) {}

  RequestId post(engine::Request request, Answer answer) override;
  void cancel(RequestId request) override;
  void open(const Peer& peer, engine::OpenSession request, Time deadline, OpenAnswer answer) override;
  Result<SessionId> authenticate(const Token& token, const Peer& peer) override;
  std::uint64_t watch(PressureWatcher watcher) override { return around_.watchers.add(std::move(watcher)); }
  void unwatch(std::uint64_t watcher) override { around_.watchers.remove(watcher); }
  bool run(std::move_only_function<void()> job) override;
  void count_refused(const Peer& peer, const Error& why) override { around_.refusals.count(peer.tenant.uid, why.code); }
  Time now() const override { return around_.reactor.now(); }
  const NodeFacts& facts() const override { return facts_; }
  std::byte* address(SessionId session, const engine::Placement& placement) override;

 private:
  const Surroundings around_;
  const NodeFacts facts_;
};

}  // namespace terrace::front
