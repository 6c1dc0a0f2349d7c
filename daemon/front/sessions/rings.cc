// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/rings.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "front/sessions/ring_request.h"

namespace terrace::front {
namespace {

// Between two looks: the other end of the ring has its cache line to itself.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Result<void> Rings::watch_doorbell(Session& session) {
  auto watch = reactor_.watch(session.doorbell.get(), POLLIN, [this, &session](unsigned) { doorbell_rang(session); });
  if (!watch) return std::unexpected(watch.error());
  session.doorbell_watch = std::move(*watch);
  return {};
}

bool Rings::poll(Duration longest) {
  const Time begin = loop_.now();
  while (!polled_.empty()) {
    if (Session* const asks = polled_.next_asker(); asks != nullptr) {
      take_submissions(*asks);
      return true;
    }
    if (reactor_.ring().has_work() || loop_.now() - begin >= longest) return true;
    polled_.leave_idle(loop_.now(), loop_.mover().in_flight() != 0);
    pause();
  }
  return false;
}

void Rings::doorbell_rang(Session& session) {
  std::uint64_t rings = 0;
  if (read(session.doorbell.get(), &rings, sizeof rings) == sizeof rings) take_submissions(session);
}

void Rings::take_submissions(Session& session) {
  if (session.state != Session::State::kOpen) return;
  sessions_.drain_logs(session);
  const bool away = !session.connection;  // its rings are a former daemon's until it resumes
  if (!away && session.region->has_submission()) polled_.asked(session, loop_.now(), loop_.mover().in_flight() != 0);
  for (std::uint32_t count = 0; !away && count < shm::kRingEntries && session.state == Session::State::kOpen; ++count) {
    const auto submission = session.region->next_submission();
    if (!submission) {
      sessions_.end(session, submission.error());
      break;
    }
    if (!submission->has_value()) break;
    take_submission(session, **submission);
  }
  if (session.state == Session::State::kOpen) loop_.engine().lease_ended(loop_.now(), session.id);
  loop_.pump();
}

void Rings::take_submission(Session& session, const shm::Submission& submission) {
  if (session.unanswered >= shm::kRingEntries)
    return sessions_.end(session,
                         {ErrorCode::kInvalidArgument, "more requests under way than the ring has entries", 0});
  ++session.unanswered;
  if ((submission.flags & shm::kResubmitted) != 0) ++resubmitted_;
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
  const auto longest = static_cast<std::uint64_t>(request_timeout_.count());
  loop_.submit({.id = loop_.next_request(),
                .session = session.id,
                .deadline = loop_.now() + Duration(std::min(submission.timeout_ns, longest)),
                .body = std::move(*body)},
               [this, id = session.id, submission](const engine::Reply& reply) { answer(id, submission, reply); });
}

void Rings::answer(SessionId id, const shm::Submission& submission, const engine::Reply& reply) {
  Session* session = sessions_.find(id);
  if (session != nullptr && session->state == Session::State::kOpen)
    complete(*session, submission, reply.result, reply.id);
}

void Rings::complete(Session& session, const shm::Submission& submission, const Result<engine::ReplyBody>& result,
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
  if (request != RequestId{}) loop_.engine().answering(request, session.region->completed() + 1);
  if (const auto completed = session.region->complete(completion); !completed)
    sessions_.end(session, completed.error());
}

}  // namespace terrace::front
