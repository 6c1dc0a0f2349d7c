// SPDX-License-Identifier: Apache-2.0
// Going on with the session when the daemon has ended: the reader looks for the next one. Leases and mappings need
// none; requests wait in Calls.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "session.h"
#include "sessions.h"

namespace terrace::client {

void Session::lose_connection(const Error& why) {
  if (reconnect_timeout_ <= std::chrono::nanoseconds::zero()) return lose_daemon(why);
  const std::optional<std::uint32_t> completions_seen = calls_.suspend();
  if (!completions_seen) return lose_daemon(why);
  const Deadline now = std::chrono::steady_clock::now();
  link_ = Link::kAway;
  absence_ = {.since = now,
              .end = deadline_after(reconnect_timeout_),
              .next_attempt = now,
              .completions_seen = *completions_seen,
              .trouble = why.message};
}

void Session::keep_trying() {
  if (link_ != Link::kAway && link_ != Link::kResuming) return;
  const Deadline now = std::chrono::steady_clock::now();
  if (now >= absence_.end) {
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(now - absence_.since);
    return lose_daemon(
        {ErrorCode::kUnavailable,
         "terraced at " + path_ + " ended " + std::to_string(passed.count()) +
             " ms ago and has not come back within reconnect_timeout; the last attempt: " +
             (link_ == Link::kResuming ? "it accepted the connection and did not answer" : absence_.trouble),
         0});
  }
  if (link_ == Link::kAway && now >= absence_.next_attempt) try_to_resume();
}

void Session::try_to_resume() {
  Result<void> sent;
  // A fork finds either no socket, or one that it knows.
  without_fork([&] {
    Result<DataSocket> fresh = DataSocket::unconnected();
    if (fresh) {
      socket_ = std::move(*fresh);
    } else {
      sent = std::unexpected(fresh.error());
    }
  });
  if (sent) sent = socket_.connect_to(path_, deadline_after({}));
  if (sent) {
    shm::Resume resume;
    resume.header.bytes = sizeof resume;
    resume.session = id_;
    resume.completions_seen = absence_.completions_seen;
    resume.token = token_;
    resume.epoch = epoch_;
    sent = socket_.send(resume.header);
  }
  if (!sent) return try_again_later(sent.error());
  listed_.clear();
  link_ = Link::kResuming;
}

void Session::try_again_later(const Error& why) {
  without_fork([&] { socket_.reset(); });
  link_ = Link::kAway;
  absence_.trouble = why.message;
  absence_.next_attempt = std::chrono::steady_clock::now() + absence_.pause;
  absence_.pause = std::min(absence_.pause * 2, kPauseMax);
}

void Session::hear_of_resuming(const Result<Message>& message) {
  Result<void> answer;
  if (!message) {
    answer = std::unexpected(message.error());
  } else if (message->header.type == shm::MessageType::kSegment) {
    answer = handle_segment(*message);
  } else if (message->header.type == shm::MessageType::kStitch) {
    answer = handle_seam(*message);
  } else if (message->header.type == shm::MessageType::kResumed) {
    answer = resume(message->as<shm::Resumed>());
  } else if (message->header.type == shm::MessageType::kRefused) {
    answer = std::unexpected(error_of(message->as<shm::Refused>()));
  } else {
    answer = fail(ErrorCode::kInternal, "terraced answered a request to go on with a message of type " +
                                            std::to_string(static_cast<std::uint32_t>(message->header.type)));
  }
  if (answer) return;
  const ErrorCode code = answer.error().code;
  // A daemon with too many connections says so before it has heard which session this is.
  const bool not_yet = code == ErrorCode::kUnavailable || code == ErrorCode::kResourceExhausted;
  if (not_yet) return try_again_later(answer.error());
  lose_daemon(answer.error());
}

Result<void> Session::resume(const shm::Resumed& resumed) {
  if (resumed.session != id_) {
    return fail(ErrorCode::kInternal, "terraced goes on with session " + std::to_string(resumed.session) +
                                          ", and was asked for " + std::to_string(id_));
  }
  if (Result<void> known = unmap_unlisted(); !known) return known;
  epoch_ = resumed.epoch;
  link_ = Link::kOpen;
  reconnects_.fetch_add(1, std::memory_order_relaxed);
  calls_.resume();
  return {};
}

// What the daemon did not pass again it took back before it died: another segment may come to lie there.
Result<void> Session::unmap_unlisted() {
  for (std::uint32_t place = 0; place < ranges_.size(); ++place) {
    if (ranges_[place] == nullptr) continue;
    std::set<std::uint64_t> offsets;
    for (const auto& [listed_place, offset] : listed_)
      if (listed_place == place) offsets.insert(offset);
    if (Result<void> kept = ranges_[place]->keep_only(offsets); !kept) return kept;
  }
  return {};
}

void Session::say_goodbye() {
  region_.header->closed.store(1, std::memory_order_release);  // for a daemon that has the session after one that died
  if (link_ == Link::kAway) try_to_resume();  // once more: a daemon that is there, or whose socket is, is told
  if (link_ != Link::kOpen && link_ != Link::kResuming) return;
  shm::Bye bye;
  bye.header.bytes = sizeof bye;
  socket_.say_last(bye.header);
}

}  // namespace terrace::client
