// SPDX-License-Identifier: Apache-2.0
// How sessions come to be: trainers that greet on data.sock, clients of gRPC, and trainers that come back.
#pragma once

#include <cstdint>

#include "base/fd.h"
#include "base/time.h"
#include "engine/values/request.h"
#include "front/gateway/gateway.h"
#include "front/node/node.h"
#include "front/reactor/engine_loop.h"
#include "front/reactor/reactor.h"
#include "front/sessions/rings.h"
#include "front/sessions/segments.h"
#include "front/sessions/session.h"
#include "front/sessions/sessions.h"
#include "front/survival/keeper.h"
#include "shm/message.h"

namespace terrace::front {

// The reactor thread's. What is borrowed outlives it.
class Arrivals {
 public:
  struct Surroundings {
    const Node& node;
    Reactor& reactor;
    EngineLoop& loop;
    Keeper& keeper;
    Sessions& sessions;
    Segments& segments;
    Rings& rings;
    std::uint32_t slots;       // tensors of a session
    Duration request_timeout;  // no request waits longer
  };
  explicit Arrivals(const Surroundings& surroundings) : around_(surroundings) {}

  // Somebody connected to data.sock, and is to say what it wants.
  void greet(Fd connection, const Peer& peer);
  // As Gateway::open(). `answer` is called later, or at once where there is no room.
  void open(const Peer& peer, engine::OpenSession request, Time deadline, Gateway::OpenAnswer answer);

 private:
  void read_messages(Session& session);
  void welcome(Session& session, const shm::Hello& hello);
  void opened(std::uint64_t key, engine::Reply reply);
  void send_welcome(const Session& session, const engine::SessionOpened& offer);
  void resume(Session& newcomer, const shm::Resume& resume);
  void go_on(Session& session, Session& newcomer);
  Result<void> make_region(Session& session) const;
  void keep(Session& session);

  const Surroundings around_;
};

// Whoever is turned away on data.sock is told why.
void turn_away(Fd connection, const Error& reason);

}  // namespace terrace::front
