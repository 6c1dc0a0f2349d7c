// SPDX-License-Identifier: Apache-2.0
// What every socket front may ask of the reactor: the one way down to the engine. Implemented by Host.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/ids.h"
#include "base/time.h"
#include "engine/engine.h"
#include "engine/values/request.h"
#include "terrace/error.h"

namespace terrace::front {

// 128 bits from getrandom. Whoever shows it acts for the session; it is never logged.
using Token = std::array<std::uint8_t, 16>;

// Who is at the other end of a connection, as the kernel says (SO_PEERCRED).
struct Peer {
  Tenant tenant;
  std::int32_t pid = 0;
  bool admin = false;  // came through the admin socket
};

// Facts of the process and the machine, set once at start: for status and metrics.
struct NodeFacts {
  std::string version;
  std::string start_report;   // the one-screen report
  std::string topology_json;  // NUMA nodes, devices
  std::vector<std::string> lacks;
};

class Gateway {
 public:
  using Answer = std::move_only_function<void(engine::Reply)>;
  struct Opened {
    SessionId session{};
    Token token{};
    std::vector<engine::PlaceOffer> places;
  };
  using OpenAnswer = std::move_only_function<void(Result<Opened>)>;
  using PressureWatcher = std::move_only_function<void(const engine::Pressure&)>;

  virtual ~Gateway() = default;

  // Thread-safe, all of these. Answers are called exactly once, on the reactor thread: they copy and post on, and never
  // block. A full queue answers kResourceExhausted at once, on the caller's thread.
  // `request.id` is chosen here and returned, for cancel().
  virtual RequestId post(engine::Request request, Answer answer) = 0;
  virtual void cancel(RequestId request) = 0;
  // Opens a session whose client maps nothing (gRPC). It ends with CloseSession, with the peer's process, or when it
  // was idle too long. request.table is made here.
  virtual void open(const Peer& peer, engine::OpenSession request, Time deadline, OpenAnswer answer) = 0;
  // The session of a token, for a peer of the same tenant; kUnauthenticated otherwise. Counts as use.
  virtual Result<SessionId> authenticate(const Token& token, const Peer& peer) = 0;
  // Calls `watcher` on the reactor thread at every pressure event until the returned number is given to unwatch(),
  // which waits for a call in progress.
  virtual std::uint64_t watch(PressureWatcher watcher) = 0;
  virtual void unwatch(std::uint64_t watcher) = 0;
  // Runs `job` on the reactor thread, where address() may be used; short: a copy of at most 256 KiB. False, and nothing
  // done, when the queue is full.
  virtual bool run(std::move_only_function<void()> job) = 0;
  // A connection was closed for what came over it, or did not: to be counted. The log has its line.
  virtual void count_refused(const Peer& /*peer*/, const Error& /*why*/) {}
  virtual Time now() const = 0;
  virtual const NodeFacts& facts() const = 0;

  // Reactor thread only (inside an Answer): where a leased copy's bytes are in this process. Valid until the
  // call returns to the reactor: the session may die before the next one. Null when it did.
  virtual std::byte* address(SessionId session, const engine::Placement& placement) = 0;
};

}  // namespace terrace::front
