// SPDX-License-Identifier: Apache-2.0
// One trainer as the front keeps it, from its connection to its end. The engine knows it by its SessionId.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/ids.h"
#include "base/time.h"
#include "front/gateway/gateway.h"
#include "front/reactor/watch.h"
#include "front/sessions/busy_poll.h"
#include "front/sessions/data_connection.h"
#include "front/sessions/session_region.h"

namespace terrace::front {

struct Session {
  enum class State : std::uint8_t {
    kGreeting,  // connected on data.sock, has said nothing yet
    kOpening,   // the engine is asked
    kOpen,
    kEnding,  // nobody is there any more; the engine winds it up
  };

  std::uint64_t key = 0;  // the front's own number, from the connection on
  State state = State::kGreeting;
  SessionId id{};  // once open
  Peer peer;
  Token token{};
  Time greeting_deadline = kNever;
  Time last_used{};
  RequestId opening{};  // the OpenSession under way

  std::optional<SessionRegion> region;
  Fd process;                                  // pidfd
  Fd doorbell;                                 // eventfd
  std::unique_ptr<DataConnection> connection;  // none: a gRPC session
  std::uint32_t unanswered = 0;                // ring submissions
  BusyPoll busy_poll{};                        // of its submissions
  SessionId space{};                           // once open: whose segments it maps, its own or a share's
  bool maps = false;                           // its trainer maps segments: it came through data.sock
  bool writes = true;                          // it may: not in a share that it opened for reading
  bool welcomed = false;                       // its trainer is told of segments
  std::vector<std::string> kept;               // names of what the supervisor keeps of it

  // After what they watch, so that they go first.
  std::unique_ptr<Watch> process_watch;
  std::unique_ptr<Watch> doorbell_watch;
  std::unique_ptr<Watch> connection_watch;
  std::unique_ptr<Watch> writable_watch;
};

// A pidfd for the process at the other end of `connection` (SO_PEERPIDFD where the kernel has it, since a number can be
// used again), else for `pid`. kUnavailable when it is gone.
Result<Fd> process_of(int connection, std::int32_t pid);

// 128 bits from getrandom(2).
Token make_token();

}  // namespace terrace::front
