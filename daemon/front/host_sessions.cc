// SPDX-License-Identifier: Apache-2.0
// Trainers on data.sock: from the greeting through rings, doorbells and segments to the end.
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "front/host.h"
#include "front/sessions/greeting.h"
#include "front/sessions/ring_request.h"
#include "shm/log.h"

namespace terrace::front {
namespace {

constexpr Duration kGreetingTimeout = std::chrono::seconds(10);

}  // namespace

void Host::greet(Fd connection, const Peer& peer) {
  auto session = std::make_unique<Session>();
  session->key = ++last_key_;
  session->peer = peer;
  session->greeting_deadline = now() + kGreetingTimeout;
  session->connection = std::make_unique<DataConnection>(std::move(connection));
  auto watch = reactor_->watch(session->connection->descriptor(), POLLIN,
                               [this, &session = *session](unsigned) { read_messages(session); });
  if (!watch || !watch_process(*session)) return;  // no room to watch it, or gone already: closing says so
  session->connection_watch = std::move(*watch);
  newcomers_.emplace(session->key, std::move(session));
}

void Host::read_messages(Session& session) {
  while (session.state != Session::State::kEnding) {
    const auto message = session.connection->receive();
    if (!message) {
      end(session, message.error());
      break;
    }
    if (!message->has_value()) break;
    if (const auto* hello = std::get_if<shm::Hello>(&**message)) {
      welcome(session, *hello);
    } else if (const auto* back = std::get_if<shm::Resume>(&**message)) {
      resume(session, *back);
      break;  // the connection is another session's now
    } else if (const auto* segment = std::get_if<shm::SegmentMessage>(&**message)) {
      retired(session, *segment);
    } else {
      end(session, {ErrorCode::kCancelled, "closed by the client", 0});
    }
  }
  loop_->pump();
}

void Host::welcome(Session& session, const shm::Hello& hello) {
  if (session.state != Session::State::kGreeting)
    return end(session, {ErrorCode::kInvalidArgument, "a second greeting on one connection", 0});
  auto asked = to_open(hello);
  if (!asked) return end(session, asked.error());
  if (const auto made = make_region(session); !made) return end(session, made.error());
  session.doorbell = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!session.doorbell)
    return end(session, {ErrorCode::kResourceExhausted, "the daemon has no descriptor left", errno});
  if (const auto watched = watch_doorbell(session); !watched) return end(session, watched.error());
  session.maps = true;
  session.token = make_token();
  session.opening = loop_->next_request();

  engine::OpenSession open = std::move(*asked);
  open.tenant = session.peer.tenant;
  open.pid = session.peer.pid;
  open.table = session.region->table();
  open.token = session.token;
  const std::uint64_t longest = std::uint64_t{config_.limits.request_timeout_ms} * 1'000'000;
  const Time deadline = now() + Duration(std::min(hello.timeout_ns, longest));
  session.state = Session::State::kOpening;  // from here on the engine knows of it
  loop_->submit({.id = session.opening, .session = {}, .deadline = deadline, .body = std::move(open)},
                [this, key = session.key](engine::Reply reply) { opened(key, std::move(reply)); });
}

Result<void> Host::watch_doorbell(Session& session) {
  auto watch = reactor_->watch(session.doorbell.get(), POLLIN, [this, &session](unsigned) { doorbell_rang(session); });
  if (!watch) return std::unexpected(watch.error());
  session.doorbell_watch = std::move(*watch);
  return {};
}

void Host::opened(std::uint64_t key, engine::Reply reply) {
  auto node = newcomers_.extract(key);
  TERRACE_CHECK(!node.empty());
  Session& session = *node.mapped();
  if (!reply.result) {
    if (session.connection && session.state != Session::State::kEnding) send(session, refusal(reply.result.error()));
    session.state = Session::State::kEnding;
    reactor_->spend(std::shared_ptr<void>(std::move(node.mapped())));
    return;
  }
  const auto& offer = std::get<engine::SessionOpened>(*reply.result);
  session.id = offer.session;
  session.space = offer.space;
  session.writes = offer.writes;
  const bool abandoned = session.state == Session::State::kEnding;
  sessions_.emplace(session.id, std::move(node.mapped()));
  if (abandoned) return loop_->engine().session_died(now(), session.id);
  session.state = Session::State::kOpen;
  space_of(session.space);
  register_token(session);
  spdlog::info("session {} opened: pid {}, uid {}", static_cast<std::uint32_t>(session.id), session.peer.pid,
               session.peer.tenant.uid);
  keep_session(session);
  if (!session.connection) return;

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
                                             .gpu = node_.gpu_at(place.place)};
  keeper_.when_kept([this, id = session.id, welcome] {
    Session* open = find(id);
    if (open == nullptr || open->state != Session::State::kOpen || !open->connection) return;
    open->welcomed = true;
    send(*open, welcome, std::array{open->region->descriptor(), open->doorbell.get()});
    send_segments(*open);  // a share has some
    send_retiring(*open);
  });
}

template <typename Message>
void Host::send(Session& session, const Message& message, std::span<const int> descriptors) {
  if (const auto sent = session.connection->send(message, descriptors); !sent) return end(session, sent.error());
  if (!session.connection->has_queued() || session.writable_watch) return;
  auto watch = reactor_->watch(session.connection->descriptor(), POLLOUT, [this, &session](unsigned) {
    if (const auto flushed = session.connection->flush(); !flushed) return end(session, flushed.error());
    if (!session.connection->has_queued()) reactor_->spend(std::move(session.writable_watch));
  });
  if (!watch) return end(session, watch.error());
  session.writable_watch = std::move(*watch);
}

template void Host::send(Session&, const shm::Resumed&, std::span<const int>);
template void Host::send(Session&, const shm::SegmentMessage&, std::span<const int>);
template void Host::send(Session&, const shm::StitchMessage&, std::span<const int>);

void Host::drain_logs(Session& session) {
  if (!session.region || session.state != Session::State::kOpen) return;
  accesses_.clear();
  if (foreseer_) stamps_.see(shm::stamp_now(), now());  // nobody else asks when a lease was taken
  const std::uint64_t fast_leases = session.region->drain_logs(stamps_, accesses_);
  if (fast_leases != 0) loop_->engine().accessed(now(), session.id, accesses_, fast_leases);
}

void Host::doorbell_rang(Session& session) {
  std::uint64_t rings = 0;
  if (read(session.doorbell.get(), &rings, sizeof rings) == sizeof rings) take_submissions(session);
}

void Host::take_submissions(Session& session) {
  if (session.state != Session::State::kOpen) return;
  drain_logs(session);
  const bool away = !session.connection;  // its rings are a former daemon's until it resumes
  if (!away && session.region->has_submission()) asked(session);
  for (std::uint32_t count = 0; !away && count < shm::kRingEntries && session.state == Session::State::kOpen; ++count) {
    const auto submission = session.region->next_submission();
    if (!submission) {
      end(session, submission.error());
      break;
    }
    if (!submission->has_value()) break;
    take_submission(session, **submission);
  }
  if (session.state == Session::State::kOpen) loop_->engine().lease_ended(now(), session.id);
  loop_->pump();
}

void Host::take_submission(Session& session, const shm::Submission& submission) {
  if (session.unanswered >= shm::kRingEntries)
    return end(session, {ErrorCode::kInvalidArgument, "more requests under way than the ring has entries", 0});
  ++session.unanswered;
  if ((submission.flags & shm::kResubmitted) != 0) ++resubmitted_requests_;
  const auto refuse = [&](const Error& error) { complete(session, submission, std::unexpected(error)); };
  const auto bytes = record_bytes(submission);
  if (!bytes) return refuse(bytes.error());
  const auto block = session.region->read_block(submission, *bytes);
  if (!block) {  // there is no place to put a text in
    shm::Submission nowhere = submission;
    nowhere.block_bytes = nowhere.block_offset = 0;
    return complete(session, nowhere, std::unexpected(block.error()));
  }
  auto body = to_request(submission, *block);
  if (!body) return refuse(body.error());
  const std::uint64_t longest = std::uint64_t{config_.limits.request_timeout_ms} * 1'000'000;
  loop_->submit(
      {.id = loop_->next_request(),
       .session = session.id,
       .deadline = now() + Duration(std::min(submission.timeout_ns, longest)),
       .body = std::move(*body)},
      [this, id = session.id, submission](const engine::Reply& reply) { answer_submission(id, submission, reply); });
}

void Host::answer_submission(SessionId id, const shm::Submission& submission, const engine::Reply& reply) {
  Session* session = find(id);
  if (session != nullptr && session->state == Session::State::kOpen)
    complete(*session, submission, reply.result, reply.id);
}

void Host::complete(Session& session, const shm::Submission& submission, const Result<engine::ReplyBody>& result,
                    RequestId request) {
  --session.unanswered;
  shm::Completion completion{};
  completion.id = submission.id;
  if (result) {
    session.region->write_block(submission, result_bytes(*result));
  } else {
    completion.code = static_cast<std::uint32_t>(result.error().code);
    completion.message_bytes =
        session.region->write_block(submission, std::as_bytes(std::span(result.error().message)));
  }
  if (request != RequestId{}) loop_->engine().answering(request, session.region->completed() + 1);
  if (const auto completed = session.region->complete(completion); !completed) end(session, completed.error());
}

void Host::end(Session& session, const Error& reason) {
  if (session.state == Session::State::kEnding) return;
  drain_logs(session);
  const Session::State before = std::exchange(session.state, Session::State::kEnding);
  forget_ring(session);
  if (session.connection && reason.code != ErrorCode::kUnavailable && reason.code != ErrorCode::kCancelled) {
    spdlog::warn("session of pid {} ended: {}", session.peer.pid, reason.message);
    static_cast<void>(session.connection->send(refusal(reason)));
  } else if (before == Session::State::kOpen) {
    spdlog::info("session {} ends: {}", static_cast<std::uint32_t>(session.id), reason.message);
  }
  // A hung-up descriptor is ready for ever: nobody looks any more. This may be one of these very watches calling.
  for (auto* watch :
       {&session.process_watch, &session.doorbell_watch, &session.connection_watch, &session.writable_watch})
    if (*watch) reactor_->spend(std::move(*watch));
  switch (before) {
    case Session::State::kGreeting: {
      auto node = newcomers_.extract(session.key);
      reactor_->spend(std::shared_ptr<void>(std::move(node.mapped())));
      break;
    }
    case Session::State::kOpening:
      // Its region stays until the engine has answered.
      loop_->engine().cancel(now(), session.opening);
      break;
    case Session::State::kOpen:
      forget_token(session.id);
      loop_->engine().session_died(now(), session.id);
      break;
    case Session::State::kEnding:
      break;
  }
}

}  // namespace terrace::front
