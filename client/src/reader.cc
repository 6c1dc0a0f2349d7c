// SPDX-License-Identifier: Apache-2.0
// The session's own thread: segments come and go, the daemon's end is noticed and the next one looked for
// (resuming.cc), and once nobody holds it any more it is all taken down.
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>

#include "session.h"
#include "stream_releases.h"

namespace terrace::client {
namespace {

// How often answers that nobody waits for are looked for.
constexpr int kLookMs = 10;
// How often, in the end, it is looked whether anybody is left in a session that was closed.
constexpr int kClosedLookMs = 100;
// Segments that are pinned together: those that have come while the ones before were pinned.
constexpr std::size_t kSegmentsTogether = 16;

void block_signals() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "terrace");
}

}  // namespace

void Session::read_messages() {
  block_signals();
  while (!nobody_is_left()) {
    const bool listens = link_ == Link::kOpen || link_ == Link::kResuming;
    std::array<pollfd, 2> ready{pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = listens ? socket_.get() : -1, .events = POLLIN, .revents = 0}};
    ::poll(ready.data(), ready.size(), patience_ms());
    if (ready[0].revents != 0) {
      std::uint64_t woken = 0;
      [[maybe_unused]] const ssize_t read = ::read(wake_.get(), &woken, sizeof woken);
    }
    if (ready[1].revents != 0) hear();
    finish_segments(ready[1].revents == 0 ? 1 : kSegmentsTogether);
    keep_trying();
  }
  say_goodbye();
  delete this;
}

int Session::patience_ms() {
  if (const PlaceRange* const host = range(shm::kPlaceHost); host != nullptr && host->unfinished() > 0) return 0;
  const bool abandoned = link_ == Link::kOpen && calls_.has_abandoned();
  if (holders_->shut()) return std::exchange(look_pause_ms_, std::min(look_pause_ms_ + 1, kClosedLookMs));
  if (link_ == Link::kOpen) return abandoned ? kLookMs : -1;
  if (link_ == Link::kLost) return -1;
  const Deadline next = link_ == Link::kAway ? std::min(absence_.next_attempt, absence_.end) : absence_.end;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
}

void Session::hear() {
  const Result<Message> message = socket_.receive(deadline_after({}));
  if (link_ == Link::kResuming) return hear_of_resuming(message);
  if (!message && message.error().code == ErrorCode::kUnavailable) return lose_connection(message.error());
  const Result<void> handled = message ? handle(*message) : std::unexpected(message.error());
  if (!handled) lose_daemon(handled.error());
}

Result<void> Session::handle(const Message& message) {
  switch (message.header.type) {
    case shm::MessageType::kSegment:
    case shm::MessageType::kRetire:
      return handle_segment(message);
    case shm::MessageType::kStitch:
    case shm::MessageType::kUnstitch:
      return handle_seam(message);
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
    // Where it cannot be sent, the connection's end is next; but what the daemon said last comes before that.
    if (!socket_.send(answer.header)) socket_.shut_down();
    return {};
  }
  if (message.descriptors.size() != 1) {
    return fail(ErrorCode::kInternal, "terraced passed a segment with " + std::to_string(message.descriptors.size()) +
                                          " descriptors: one is right");
  }
  if (link_ == Link::kResuming) listed_.emplace(segment.place, segment.offset);
  // A daemon that goes on passes them all again.
  if (place->has(segment.offset, segment.bytes, message.descriptors[0].get())) return {};
  if (!place->is_gpu()) pin_host();  // before it is mapped
  Result<void> mapped = place->map(segment.offset, segment.bytes, message.descriptors[0].get());
  if (!mapped && !place->is_gpu()) return mapped;
  note_mapped(segment.place, 0, mapped);
  if (place->is_gpu()) pin_host();
  return {};
}

// What cannot be mapped fails the leases that wait for it, and no others.
void Session::note_mapped(std::uint32_t place, std::uint64_t seam, const Result<void>& mapped) {
  {
    const std::lock_guard lock(mutex_);  // so that nobody is between looking and waiting
    if (!mapped) {
      unmappable_[{place, seam}] = mapped.error();
    } else {
      unmappable_.erase({place, seam});
    }
  }
  changed_.notify_all();
}

Result<void> Session::handle_seam(const Message& message) {
  const bool is_part = message.header.type == shm::MessageType::kStitch;
  const auto number = is_part ? message.as<shm::StitchMessage>().place : message.as<shm::SegmentMessage>().place;
  PlaceRange* const place = range(number);
  if (place == nullptr || place->is_gpu()) {
    return fail(ErrorCode::kInternal,
                "terraced passed a seam of place " + std::to_string(number) + ", which can have none");
  }
  if (!is_part) {
    const std::uint64_t offset = message.as<shm::SegmentMessage>().offset;
    place->unstitch(offset);
    note_mapped(number, offset, {});
    return {};
  }
  const auto part = message.as<shm::StitchMessage>();
  if (link_ == Link::kResuming) listed_.emplace(part.place, part.offset);
  const Result<void> mapped = place->stitch(part);
  if (!mapped && mapped.error().code != ErrorCode::kResourceExhausted) return mapped;
  note_mapped(part.place, part.offset, mapped);
  return {};
}

void Session::finish_segments(std::size_t at_least) {
  PlaceRange* const host = range(shm::kPlaceHost);
  if (host == nullptr || host->unfinished() < at_least) return;
  host->finish();
  {
    const std::lock_guard lock(mutex_);
  }  // so that nobody is between looking and waiting
  changed_.notify_all();
}

void Session::pin_host() {
  PlaceRange* const host = range(shm::kPlaceHost);
  const auto serves_gpu = [](const auto& each) { return each != nullptr && each->is_gpu(); };
  if (host == nullptr || std::ranges::none_of(ranges_, serves_gpu)) return;
  const auto mapped = std::ranges::find_if(
      ranges_, [](const auto& each) { return each != nullptr && each->is_gpu() && each->gpu() != nullptr; });
  const std::shared_ptr<Gpu> gpu = mapped != ranges_.end() ? (*mapped)->gpu() : Gpu::in_use();
  if (gpu == nullptr) return;  // so far; no context is made for this
  if (mapped != ranges_.end()) start_stream_releases(gpu->api());
  host->pin(gpu);
}

void Session::lose_daemon(const Error& why) {
  const Error told{why.code, why.message + ". Leases that are held stay valid; connect again for anything else",
                   why.system_error};
  link_ = Link::kLost;
  {
    const std::lock_guard lock(mutex_);
    gone_ = told;
  }
  changed_.notify_all();
  calls_.fail_all(told);
  socket_.shut_down();
}

}  // namespace terrace::client
