// SPDX-License-Identifier: Apache-2.0
// The session's own thread: segments come and go, the daemon's end is noticed, and the last reference takes it all
// down.
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string>

#include "session.h"

namespace terrace::client {
namespace {

// How often answers that nobody waits for are looked for.
constexpr int kAbandonedPollMs = 10;

void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "terrace");
}

}  // namespace

void Session::read_messages() {
  block_signals();
  bool lost = false;
  while (true) {
    std::array<pollfd, 2> ready{pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = lost ? -1 : socket_.get(), .events = POLLIN, .revents = 0}};
    const int timeout_ms = calls_.has_abandoned() ? kAbandonedPollMs : -1;
    if (::poll(ready.data(), ready.size(), timeout_ms) < 0 && errno != EINTR) break;
    if (ready[0].revents != 0) {
      std::uint64_t woken = 0;
      if (::read(wake_.get(), &woken, sizeof woken) == sizeof woken && woken >= kLast) break;
    }
    if (ready[1].revents == 0) continue;
    const Result<Message> message = socket_.receive(deadline_after({}));
    Result<void> handled = message ? handle(*message) : std::unexpected(message.error());
    if (!handled) {
      lost = true;
      lose_daemon(handled.error());
      socket_.shut_down();
    }
  }
  if (!lost) {
    shm::Bye bye;
    bye.header.bytes = sizeof bye;
    static_cast<void>(socket_.send(bye.header));  // gone or not, this is the end
  }
  delete this;
}

Result<void> Session::handle(const Message& message) {
  switch (message.header.type) {
    case shm::MessageType::kSegment:
    case shm::MessageType::kRetire:
      return handle_segment(message);
    case shm::MessageType::kRefused:
      return std::unexpected(error_of(message.as<shm::Refused>()));
    default:
      return fail(ErrorCode::kInternal, "terraced sent a message of type " +
                                            std::to_string(static_cast<std::uint32_t>(message.header.type)) +
                                            " in an open session");
  }
}

Result<void> Session::handle_segment(const Message& message) {
  const auto segment = message.as<shm::SegmentMessage>();
  PlaceRange* const place = range(segment.place);
  if (place == nullptr) {
    return fail(ErrorCode::kInternal,
                "terraced passed a segment of place " + std::to_string(segment.place) + ", which it did not offer");
  }
  if (segment.header.type == shm::MessageType::kRetire) {
    if (Result<void> unmapped = place->unmap(segment.offset, segment.bytes); !unmapped) return unmapped;
    shm::SegmentMessage answer = segment;
    answer.header.type = shm::MessageType::kRetired;
    return socket_.send(answer.header);
  }
  if (message.descriptors.size() != 1) {
    return fail(ErrorCode::kInternal, "terraced passed a segment with " + std::to_string(message.descriptors.size()) +
                                          " descriptors: one is right");
  }
  Result<void> mapped = place->map(segment.offset, segment.bytes, message.descriptors[0].get());
  if (mapped) {
    {
      const std::lock_guard lock(mutex_);
    }  // so that nobody is between looking and waiting
    changed_.notify_all();
  }
  return mapped;
}

void Session::lose_daemon(const Error& why) {
  const Error told{why.code, why.message + ". Leases that are held stay valid; connect again for anything else",
                   why.system_error};
  {
    const std::lock_guard lock(mutex_);
    gone_ = told;
  }
  changed_.notify_all();
  calls_.fail_all(told);
}

}  // namespace terrace::client
