// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/arrivals.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <utility>

#include "front/sessions/data_connection.h"
#include "front/sessions/greeting.h"
#include "front/sessions/kept_names.h"

namespace terrace::front {
namespace {

constexpr Duration kGreetingTimeout = std::chrono::seconds(10);

}  // namespace

void turn_away(Fd connection, const Error& reason) {
  static_cast<void>(DataConnection(std::move(connection)).send(refusal(reason)));
}

void Arrivals::greet(Fd connection, const Peer& peer) {
  auto session = std::make_unique<Session>();
  session->key = around_.sessions.next_key();
  session->peer = peer;
  session->greeting_deadline = around_.loop.now() + kGreetingTimeout;
  session->connection = std::make_unique<DataConnection>(std::move(connection));
  auto watch = around_.reactor.watch(session->connection->descriptor(), POLLIN,
                                     [this, &session = *session](unsigned) { read_messages(session); });
  // No room to watch it, or gone already: closing says so.
  if (!watch || !around_.sessions.watch_process(*session)) return;
  session->connection_watch = std::move(*watch);
  around_.sessions.add_newcomer(std::move(session));
}

void Arrivals::read_messages(Session& session) {
  Sessions& sessions = around_.sessions;
  while (session.state != Session::State::kEnding) {
    const auto message = session.connection->receive();
    if (!message) {
      sessions.end(session, message.error());
      break;
    }
    if (!message->has_value()) break;
    if (const auto* hello = std::get_if<shm::Hello>(&**message)) {
      welcome(session, *hello);
    } else if (const auto* back = std::get_if<shm::Resume>(&**message)) {
      resume(session, *back);
      break;  // the connection is another session's now
    } else if (const auto* segment = std::get_if<shm::SegmentMessage>(&**message)) {
      around_.segments.retired(session, *segment);
    } else {
      sessions.end(session, {ErrorCode::kCancelled, "closed by the client", 0});
    }
  }
  around_.loop.pump();
}

void Arrivals::welcome(Session& session, const shm::Hello& hello) {
  const auto refuse = [&](const Error& error) { around_.sessions.end(session, error); };
  if (session.state != Session::State::kGreeting)
    return refuse({ErrorCode::kInvalidArgument, "a second greeting on one connection", 0});
  auto asked = to_open(hello);
  if (!asked) return refuse(asked.error());
  if (const auto made = make_region(session); !made) return refuse(made.error());
  session.doorbell = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!session.doorbell) return refuse({ErrorCode::kResourceExhausted, "the daemon has no descriptor left", errno});
  if (const auto watched = around_.rings.watch_doorbell(session); !watched) return refuse(watched.error());
  session.maps = true;
  session.token = make_token();
  session.opening = around_.loop.next_request();

  engine::OpenSession open = std::move(*asked);
  open.tenant = session.peer.tenant;
  open.pid = session.peer.pid;
  open.table = session.region->table();
  open.token = session.token;
  const auto longest = static_cast<std::uint64_t>(around_.request_timeout.count());
  const Time deadline = around_.loop.now() + Duration(std::min(hello.timeout_ns, longest));
  session.state = Session::State::kOpening;  // from here on the engine knows of it
  around_.loop.submit({.id = session.opening, .session = {}, .deadline = deadline, .body = std::move(open)},
                      [this, key = session.key](engine::Reply reply) { opened(key, std::move(reply)); });
}

void Arrivals::open(const Peer& peer, engine::OpenSession request, Time deadline, Gateway::OpenAnswer answer) {
  auto session = std::make_unique<Session>();
  session->peer = peer;
  session->key = around_.sessions.next_key();
  session->state = Session::State::kOpening;
  session->token = make_token();
  Result<void> ready = make_region(*session);
  if (ready) ready = around_.sessions.watch_process(*session);
  if (!ready) return answer(std::unexpected(ready.error()));
  request.tenant = peer.tenant;
  request.table = session->region->table();
  request.token = session->token;
  session->opening = around_.loop.next_request();
  const std::uint64_t key = session->key;
  const RequestId id = session->opening;
  const Token token = session->token;
  around_.sessions.add_newcomer(std::move(session));
  around_.loop.submit({.id = id, .session = {}, .deadline = deadline, .body = std::move(request)},
                      [this, key, token, answer = std::move(answer)](engine::Reply reply) mutable {
                        Result<Gateway::Opened> result;
                        if (reply.result) {
                          auto& open = std::get<engine::SessionOpened>(*reply.result);
                          result = Gateway::Opened{open.session, token, std::move(open.places)};
                        } else {
                          result = std::unexpected(reply.result.error());
                        }
                        opened(key, std::move(reply));
                        around_.keeper.when_kept([answer = std::move(answer), result = std::move(result)]() mutable {
                          answer(std::move(result));
                        });
                      });
  around_.loop.pump();
}

void Arrivals::opened(std::uint64_t key, engine::Reply reply) {
  Sessions& sessions = around_.sessions;
  auto newcomer = sessions.take_newcomer(key);
  if (!reply.result) {
    if (newcomer->connection && newcomer->state != Session::State::kEnding)
      sessions.send(*newcomer, refusal(reply.result.error()));
    newcomer->state = Session::State::kEnding;
    return sessions.spend(std::move(newcomer));
  }
  const auto& offer = std::get<engine::SessionOpened>(*reply.result);
  newcomer->id = offer.session;
  newcomer->space = offer.space;
  newcomer->writes = offer.writes;
  Session& session = sessions.add(std::move(newcomer));
  if (session.state == Session::State::kEnding)
    return around_.loop.engine().session_died(around_.loop.now(), session.id);
  session.state = Session::State::kOpen;
  around_.segments.space_of(session.space);
  sessions.register_token(session);
  spdlog::info("session {} opened: pid {}, uid {}", static_cast<std::uint32_t>(session.id), session.peer.pid,
               session.peer.tenant.uid);
  keep(session);
  if (session.connection) send_welcome(session, offer);
}

void Arrivals::send_welcome(const Session& session, const engine::SessionOpened& offer) {
  shm::Welcome welcome;
  welcome.header.type = shm::MessageType::kWelcome;
  welcome.session = static_cast<std::uint32_t>(session.id);
  welcome.read_only = session.writes ? 0 : 1;
  welcome.token = session.token;
  welcome.region_bytes = session.region->bytes();
  for (const engine::PlaceOffer& place : offer.places)
    welcome.places[welcome.place_count++] = {.place = place.place,
                                             .writable_only = place.place == shm::kPlaceHost ? 0u : 1u,
                                             .range_bytes = place.range_bytes,
                                             .guarantee_bytes = place.guarantee_bytes,
                                             .gpu = around_.node.gpu_at(place.place)};
  around_.keeper.when_kept([this, id = session.id, welcome] {
    Session* open = around_.sessions.find(id);
    if (open == nullptr || open->state != Session::State::kOpen || !open->connection) return;
    open->welcomed = true;
    around_.sessions.send(*open, welcome, std::array{open->region->descriptor(), open->doorbell.get()});
    around_.segments.send_all(*open);  // a share has some
    around_.segments.send_retiring(*open);
  });
}

// A trainer is back, on a connection of its own.
void Arrivals::resume(Session& newcomer, const shm::Resume& resume) {
  Sessions& sessions = around_.sessions;
  Session* session = sessions.find(SessionId{resume.session});
  if (newcomer.state != Session::State::kGreeting)
    return sessions.end(newcomer, {ErrorCode::kInvalidArgument, "a session is resumed on a connection of its own", 0});
  const bool known = session != nullptr && session->maps && session->state == Session::State::kOpen &&
                     session->token == resume.token && session->peer.tenant == newcomer.peer.tenant;
  if (!known)
    return sessions.end(
        newcomer, {ErrorCode::kNotFound, "there is no such session to resume: it ended, or this daemon is another", 0});
  if (session->connection) {
    const Error not_yet{ErrorCode::kUnavailable, "the session's former connection is not closed yet", 0};
    static_cast<void>(newcomer.connection->send(refusal(not_yet)));  // end() says nothing to whoever may come again
    return sessions.end(newcomer, not_yet);
  }
  go_on(*session, newcomer);
}

// The session goes on with the newcomer's connection.
void Arrivals::go_on(Session& session, Session& newcomer) {
  Sessions& sessions = around_.sessions;
  session.connection = std::move(newcomer.connection);
  around_.reactor.spend(std::move(newcomer.connection_watch));
  around_.reactor.spend(std::move(newcomer.process_watch));
  newcomer.state = Session::State::kEnding;
  sessions.spend(sessions.take_newcomer(newcomer.key));
  auto watch = around_.reactor.watch(session.connection->descriptor(), POLLIN,
                                     [this, &session](unsigned) { read_messages(session); });
  if (!watch) return sessions.end(session, watch.error());
  session.connection_watch = std::move(*watch);
  session.unanswered = 0;
  shm::Resumed resumed;
  resumed.header.type = shm::MessageType::kResumed;
  resumed.session = static_cast<std::uint32_t>(session.id);
  resumed.epoch = session.region->begin_epoch();
  around_.segments.send_all(session);
  sessions.send(session, resumed);
  around_.segments.send_retiring(session);
  spdlog::info("session {} goes on with pid {}", static_cast<std::uint32_t>(session.id), session.peer.pid);
}

Result<void> Arrivals::make_region(Session& session) const {
  auto region = SessionRegion::create(around_.slots);
  if (!region) return std::unexpected(region.error());
  session.region.emplace(std::move(*region));
  return {};
}

void Arrivals::keep(Session& session) {
  const auto keep = [&](char what, int descriptor) {
    const std::string name = kept_name(session.id, what);
    if (around_.keeper.keep(name, descriptor)) session.kept.push_back(name);
  };
  keep(kKeptRegion, session.region->descriptor());
  keep(kKeptProcess, session.process.get());
  if (session.maps) keep(kKeptDoorbell, session.doorbell.get());
}

}  // namespace terrace::front
