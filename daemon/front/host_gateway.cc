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

RequestId Host::post(engine::Request request, Answer answer) {
  const RequestId id = request.id = loop_->next_request();
  // The job owns the answer; if the mailbox refuses it, the answer must still be there to be called.
  auto shared = std::make_shared<Answer>(std::move(answer));
  const bool posted = reactor_->post([this, request = std::move(request), shared]() mutable {
    if (std::holds_alternative<engine::GetStatus>(request.body))
      for (auto& [session_id, session] : sessions_) drain_logs(*session);
    loop_->submit(std::move(request), std::move(*shared));
    loop_->pump();
  });
  if (!posted) (*shared)(refusal_of(id, ErrorCode::kResourceExhausted, kMailboxFull));
  return id;
}

void Host::cancel(RequestId request) {
  // A full mailbox loses the wish, not the reply: the request's deadline stands.
  static_cast<void>(reactor_->post([this, request] {
    loop_->engine().cancel(now(), request);
    loop_->pump();
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
  auto watch = reactor_->watch(session.process.get(), POLLIN, [this, &session](unsigned) {
    end(session, {ErrorCode::kUnavailable, "the trainer's process ended", 0});
    loop_->pump();
  });
  if (!watch) return std::unexpected(watch.error());
  session.process_watch = std::move(*watch);
  return {};
}

void Host::open(const Peer& peer, engine::OpenSession request, Time deadline, OpenAnswer answer) {
  auto shared = std::make_shared<OpenAnswer>(std::move(answer));
  const bool posted = reactor_->post([this, peer, request = std::move(request), deadline, shared]() mutable {
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
    session->opening = loop_->next_request();
    const std::uint64_t key = session->key;
    const RequestId id = session->opening;
    const Token token = session->token;
    newcomers_.emplace(key, std::move(session));
    loop_->submit({.id = id, .session = {}, .deadline = deadline, .body = std::move(request)},
                  [this, key, token, shared](engine::Reply reply) {
                    Result<Opened> result;
                    if (reply.result) {
                      auto& open = std::get<engine::SessionOpened>(*reply.result);
                      result = Opened{open.session, token, std::move(open.places)};
                    } else {
                      result = std::unexpected(reply.result.error());
                    }
                    opened(key, std::move(reply));
                    keeper_.when_kept([shared, result = std::move(result)]() mutable { (*shared)(std::move(result)); });
                  });
    loop_->pump();
  });
  if (!posted) (*shared)(fail(ErrorCode::kResourceExhausted, kMailboxFull));
}

void Host::register_token(const Session& session) {
  tokens_.add(session.token, session.id, session.peer.tenant, now());
}

void Host::forget_token(SessionId id) {
  if (const Session* session = find(id); session != nullptr) tokens_.forget(session->token);
}

Result<SessionId> Host::authenticate(const Token& token, const Peer& peer) {
  return tokens_.authenticate(token, peer.tenant, now());
}

Session* Host::find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

std::uint64_t Host::watch(PressureWatcher watcher) { return watchers_.add(std::move(watcher)); }

void Host::unwatch(std::uint64_t watcher) { watchers_.remove(watcher); }

bool Host::run(std::move_only_function<void()> job) {
  return reactor_->post([this, job = std::move(job)]() mutable {
    job();
    loop_->pump();
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
