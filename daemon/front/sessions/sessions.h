// SPDX-License-Identifier: Apache-2.0
// All trainers that the front knows, and how each ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "front/gateway/refusals.h"
#include "front/gateway/tokens.h"
#include "front/reactor/engine_loop.h"
#include "front/reactor/reactor.h"
#include "front/sessions/access_logs.h"
#include "front/sessions/polled_rings.h"
#include "front/sessions/session.h"
#include "terrace/error.h"

namespace terrace::front {

// The reactor thread's. What is borrowed outlives it. A session stays where it is in memory until the end of the turn
// in which it ended, or was gone.
class Sessions {
 public:
  Sessions(Reactor& reactor, EngineLoop& loop, Tokens& tokens, Refusals& refusals, AccessLogs& logs,
           PolledRings& polled)
      : reactor_(reactor), loop_(loop), tokens_(tokens), refusals_(refusals), logs_(logs), polled_(polled) {}

  // A new one's number.
  std::uint64_t next_key() { return ++last_key_; }
  // One that greets, or is being opened; by its key.
  void add_newcomer(std::unique_ptr<Session> session);
  // Takes it out; it is there.
  std::unique_ptr<Session> take_newcomer(std::uint64_t key);
  // One that the engine knows; by its id.
  Session& add(std::unique_ptr<Session> session);

  // Null: the engine knows no such session.
  Session* find(SessionId id);
  // The trainers that map the space's segments, whether they are connected just now or not.
  std::vector<Session*> mappers_of(SessionId space);
  // All that the engine knows, or knew when they ended.
  const std::map<SessionId, std::unique_ptr<Session>>& known() const { return known_; }
  std::size_t size() const { return known_.size() + newcomers_.size(); }

  // Ends it when the process at the other end of its connection does, or else that of its peer's pid. Errors: it has
  // ended, or there is no room to watch it.
  Result<void> watch_process(Session& session);
  // The same for one whose process is known.
  Result<void> watch_end(Session& session);
  // Its token opens it from now on.
  void register_token(const Session& session);
  void forget_token(SessionId id);

  // To a connected one, with duplicates of `descriptors`; ends it where it cannot be.
  template <typename Message>
  void send(Session& session, const Message& message, std::span<const int> descriptors = {}) {
    if (const auto sent = session.connection->send(message, descriptors); !sent) return end(session, sent.error());
    send_rest_later(session);
  }

  // Nobody is there any more, or is to be; again: nothing happens.
  void end(Session& session, const Error& reason);
  void end_all(const Error& reason);
  // Those that have not greeted in time, and those without a connection whose token nobody used for so long.
  void end_late(Duration idle_max);
  // Nothing is left of it in the engine: taken out, and to be spent. Null: there is none.
  std::unique_ptr<Session> take_gone(SessionId id);
  // At the end of the turn.
  void spend(std::unique_ptr<Session> session);

  void drain_logs(Session& session) { logs_.drain(session); }
  void drain_all_logs();

 private:
  void send_rest_later(Session& session);

  Reactor& reactor_;
  EngineLoop& loop_;
  Tokens& tokens_;
  Refusals& refusals_;
  AccessLogs& logs_;
  PolledRings& polled_;
  std::map<std::uint64_t, std::unique_ptr<Session>> newcomers_;  // by key: greeting and opening
  std::map<SessionId, std::unique_ptr<Session>> known_;          // open and ending
  std::uint64_t last_key_ = 0;
};

}  // namespace terrace::front
