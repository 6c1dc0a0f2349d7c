// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/sessions.h"

#include <poll.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "base/check.h"

namespace terrace::front {

void Sessions::add_newcomer(std::unique_ptr<Session> session) {
  const std::uint64_t key = session->key;
  newcomers_.emplace(key, std::move(session));
}

std::unique_ptr<Session> Sessions::take_newcomer(std::uint64_t key) {
  auto node = newcomers_.extract(key);
  TERRACE_CHECK(!node.empty());
  return std::move(node.mapped());
}

Session& Sessions::add(std::unique_ptr<Session> session) {
  const SessionId id = session->id;
  return *known_.emplace(id, std::move(session)).first->second;
}

Session* Sessions::find(SessionId id) {
  const auto found = known_.find(id);
  return found == known_.end() ? nullptr : found->second.get();
}

std::vector<Session*> Sessions::mappers_of(SessionId space) {
  std::vector<Session*> mappers;
  for (auto& [id, session] : known_)
    if (session->space == space && session->maps && session->state == Session::State::kOpen)
      mappers.push_back(session.get());
  return mappers;
}

Result<void> Sessions::watch_process(Session& session) {
  auto process = process_of(session.connection ? session.connection->descriptor() : -1, session.peer.pid);
  if (!process) return std::unexpected(process.error());
  session.process = std::move(*process);
  return watch_end(session);
}

Result<void> Sessions::watch_end(Session& session) {
  auto watch = reactor_.watch(session.process.get(), POLLIN, [this, &session](unsigned) {
    end(session, {ErrorCode::kUnavailable, "the trainer's process ended", 0});
    loop_.pump();
  });
  if (!watch) return std::unexpected(watch.error());
  session.process_watch = std::move(*watch);
  return {};
}

void Sessions::register_token(const Session& session) {
  tokens_.add(session.token, session.id, session.peer.tenant, loop_.now());
}

void Sessions::forget_token(SessionId id) {
  if (const Session* session = find(id); session != nullptr) tokens_.forget(session->token);
}

void Sessions::send_rest_later(Session& session) {
  if (!session.connection->has_queued() || session.writable_watch) return;
  auto watch = reactor_.watch(session.connection->descriptor(), POLLOUT, [this, &session](unsigned) {
    if (const auto flushed = session.connection->flush(); !flushed) return end(session, flushed.error());
    if (!session.connection->has_queued()) reactor_.spend(std::move(session.writable_watch));
  });
  if (!watch) return end(session, watch.error());
  session.writable_watch = std::move(*watch);
}

void Sessions::end(Session& session, const Error& reason) {
  if (session.state == Session::State::kEnding) return;
  drain_logs(session);
  const Session::State before = std::exchange(session.state, Session::State::kEnding);
  polled_.forget(session);
  if (session.connection && reason.code != ErrorCode::kUnavailable && reason.code != ErrorCode::kCancelled) {
    refusals_.count(session.peer.tenant.uid, reason.code);
    spdlog::warn("session of pid {}, uid {} ended: {}", session.peer.pid, session.peer.tenant.uid, reason.message);
    static_cast<void>(session.connection->send(refusal(reason)));
  } else if (before == Session::State::kOpen) {
    spdlog::info("session {} ends: {}", static_cast<std::uint32_t>(session.id), reason.message);
  }
  // A hung-up descriptor is ready for ever: nobody looks any more. This may be one of these very watches calling.
  for (auto* watch :
       {&session.process_watch, &session.doorbell_watch, &session.connection_watch, &session.writable_watch})
    if (*watch) reactor_.spend(std::move(*watch));
  switch (before) {
    case Session::State::kGreeting:
      spend(take_newcomer(session.key));
      break;
    case Session::State::kOpening:
      // Its region stays until the engine has answered.
      loop_.engine().cancel(loop_.now(), session.opening);
      break;
    case Session::State::kOpen:
      forget_token(session.id);
      loop_.engine().session_died(loop_.now(), session.id);
      break;
    case Session::State::kEnding:
      break;
  }
}

void Sessions::end_all(const Error& reason) {
  std::vector<Session*> all;
  for (auto& [key, session] : newcomers_) all.push_back(session.get());
  for (auto& [id, session] : known_) all.push_back(session.get());
  for (Session* session : all) end(*session, reason);
}

void Sessions::end_late(Duration idle_max) {
  std::vector<Session*> late;
  for (auto& [key, session] : newcomers_)
    if (session->state == Session::State::kGreeting && loop_.now() >= session->greeting_deadline)
      late.push_back(session.get());
  for (Session* session : late) end(*session, {ErrorCode::kDeadlineExceeded, "no greeting came", 0});
  for (const SessionId id : tokens_.unused_for(idle_max, loop_.now())) {
    Session* session = find(id);
    if (session != nullptr && session->connection == nullptr && !session->maps)
      end(*session, {ErrorCode::kDeadlineExceeded, "idle", 0});
  }
}

std::unique_ptr<Session> Sessions::take_gone(SessionId id) {
  auto node = known_.extract(id);
  if (node.empty()) return nullptr;
  node.mapped()->state = Session::State::kEnding;  // where it was CloseSession, and not end()
  polled_.forget(*node.mapped());
  spdlog::info("session {} is gone", static_cast<std::uint32_t>(id));
  return std::move(node.mapped());
}

void Sessions::spend(std::unique_ptr<Session> session) { reactor_.spend(std::shared_ptr<void>(std::move(session))); }

void Sessions::drain_all_logs() {
  for (auto& [id, session] : known_) drain_logs(*session);
}

}  // namespace terrace::front
