// SPDX-License-Identifier: Apache-2.0
// The way in for other threads: requests, tokens, and sessions whose clients map nothing.
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include "base/check.h"
#include "front/host.h"

namespace terrace::front {

namespace {

engine::Reply refusal_of(RequestId id, ErrorCode code, std::string message) {
  return {id, std::unexpected(Error{code, std::move(message), 0})};
}

constexpr const char* kMailboxFull = "the daemon has as many requests waiting as it takes; try again in a moment";

}  // namespace

void Host::submit(engine::Request request, Answer answer) {
  answers_.emplace(request.id, std::move(answer));
  engine_->submit(now(), std::move(request));
}

RequestId Host::post(engine::Request request, Answer answer) {
  const RequestId id = request.id = next_request();
  // The job owns the answer; if the mailbox refuses it, the answer must still be there to be called.
  auto shared = std::make_shared<Answer>(std::move(answer));
  const bool posted = mailbox_->post([this, request = std::move(request), shared]() mutable {
    if (std::holds_alternative<engine::GetStatus>(request.body))
      for (auto& [session_id, session] : sessions_) drain_logs(*session);
    submit(std::move(request), std::move(*shared));
    pump();
  });
  if (!posted) (*shared)(refusal_of(id, ErrorCode::kResourceExhausted, kMailboxFull));
  return id;
}

void Host::cancel(RequestId request) {
  // A full mailbox loses the wish, not the reply: the request's deadline stands.
  static_cast<void>(mailbox_->post([this, request] {
    engine_->cancel(now(), request);
    pump();
  }));
}

Result<void> Host::make_region(Session& session) {
  auto region = SessionRegion::create(config_.limits.tensors_per_session_max);
  if (!region) return std::unexpected(region.error());
  session.region.emplace(std::move(*region));
  return {};
}

Result<void> Host::watch_process(Session& session) {
  auto process = process_of(session.connection ? session.connection->descriptor() : -1, session.peer.pid);
  if (!process) return std::unexpected(process.error());
  session.process = std::move(*process);
  return watch_end(session);
}

Result<void> Host::watch_end(Session& session) {
  auto watch = Watch::create(*ring_, session.process.get(), POLLIN, [this, &session](unsigned) {
    end(session, {ErrorCode::kUnavailable, "the trainer's process ended", 0});
    pump();
  });
  if (!watch) return std::unexpected(watch.error());
  session.process_watch = std::move(*watch);
  return {};
}

void Host::open(const Peer& peer, engine::OpenSession request, Time deadline, OpenAnswer answer) {
  auto shared = std::make_shared<OpenAnswer>(std::move(answer));
  const bool posted = mailbox_->post([this, peer, request = std::move(request), deadline, shared]() mutable {
    auto session = std::make_unique<Session>();
    session->peer = peer;
    session->key = ++last_key_;
    session->state = Session::State::kOpening;
    session->token = make_token();
    Result<void> ready = make_region(*session);
    if (ready) ready = watch_process(*session);
    if (!ready) return (*shared)(std::unexpected(ready.error()));
    request.tenant = peer.tenant;
    request.table = session->region->table();
    request.token = session->token;
    session->opening = next_request();
    const std::uint64_t key = session->key;
    const RequestId id = session->opening;
    const Token token = session->token;
    newcomers_.emplace(key, std::move(session));
    submit({.id = id, .session = {}, .deadline = deadline, .body = std::move(request)},
           [this, key, token, shared](engine::Reply reply) {
             Result<Opened> result;
             if (reply.result) {
               auto& open = std::get<engine::SessionOpened>(*reply.result);
               result = Opened{open.session, token, std::move(open.places)};
             } else {
               result = std::unexpected(reply.result.error());
             }
             opened(key, std::move(reply));
             when_kept([shared, result = std::move(result)]() mutable { (*shared)(std::move(result)); });
           });
    pump();
  });
  if (!posted) (*shared)(fail(ErrorCode::kResourceExhausted, kMailboxFull));
}

void Host::register_token(const Session& session) {
  const std::scoped_lock lock(tokens_mutex_);
  const bool fresh = tokens_.emplace(session.token, Ticket{session.id, session.peer.tenant, now()}).second;
  TERRACE_CHECK(fresh);
}

void Host::forget_token(SessionId id) {
  const auto found = sessions_.find(id);
  const std::scoped_lock lock(tokens_mutex_);
  if (found != sessions_.end()) tokens_.erase(found->second->token);
}

Result<SessionId> Host::authenticate(const Token& token, const Peer& peer) {
  const std::scoped_lock lock(tokens_mutex_);
  const auto found = tokens_.find(token);
  if (found == tokens_.end() || found->second.tenant != peer.tenant)
    return fail(ErrorCode::kUnauthenticated, "the token is not of an open session of this tenant; open a session");
  found->second.last_used = now();
  return found->second.session;
}

Session* Host::find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

std::uint64_t Host::watch(PressureWatcher watcher) {
  const std::scoped_lock lock(watchers_mutex_);
  watchers_.emplace(++last_watcher_, std::move(watcher));
  return last_watcher_;
}

void Host::unwatch(std::uint64_t watcher) {
  const std::scoped_lock lock(watchers_mutex_);
  watchers_.erase(watcher);
}

bool Host::run(std::move_only_function<void()> job) {
  return mailbox_->post([this, job = std::move(job)]() mutable {
    job();
    pump();
  });
}

std::byte* Host::address(SessionId session, const engine::Placement& placement) {
  const tier::MappedTier* tier = node_.at_place(placement.place);
  const Session* owner = find(session);
  if (tier == nullptr || tier->cuda() != nullptr || owner == nullptr || owner->state != Session::State::kOpen)
    return nullptr;
  return tier->address(owner->space, placement.offset);
}

}  // namespace terrace::front
