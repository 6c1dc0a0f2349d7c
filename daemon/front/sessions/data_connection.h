// SPDX-License-Identifier: Apache-2.0
// One connection on data.sock: whole messages in and out, descriptors with those that go out. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "base/fd.h"
#include "shm/message.h"
#include "terrace/error.h"

namespace terrace::front {

class DataConnection {
 public:
  using Incoming = std::variant<shm::Hello, shm::SegmentMessage, shm::Bye, shm::Resume>;

  // `socket`: a connected, non-blocking SOCK_SEQPACKET.
  explicit DataConnection(Fd socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }

  // The next message; none if there is none yet. Errors: kUnavailable when the peer is gone, kFailedPrecondition for
  // another protocol version, kInvalidArgument for anything that is no message. Descriptors that come along are closed.
  Result<std::optional<Incoming>> receive();

  // Queues a message with duplicates of `descriptors`, and sends what the socket takes. kUnavailable when the peer is
  // gone; kResourceExhausted when it has not read for so long that kQueueMax messages wait.
  template <typename Message>
  Result<void> send(Message message, std::span<const int> descriptors = {}) {
    message.header.bytes = sizeof message;
    return queue(std::as_bytes(std::span(&message, 1)), descriptors);
  }
  // Sends what is queued, as far as the socket takes it.
  Result<void> flush();
  bool has_queued() const { return !queue_.empty(); }
  // Takes a seam's messages out of the queue, if none of them was sent: who reads late is not to hear of what is gone.
  // False, and nothing done, if one was.
  bool take_back_seam(std::uint32_t place, std::uint64_t offset);

  // More than a session has of seams and segments.
  static constexpr std::size_t kQueueMax = 16384;

 private:
  struct Outgoing {
    std::vector<std::byte> bytes;
    std::vector<Fd> descriptors;
  };
  Result<void> queue(std::span<const std::byte> bytes, std::span<const int> descriptors);

  Fd socket_;
  std::deque<Outgoing> queue_;
};

// The kRefused message for an error.
shm::Refused refusal(const Error& error);

}  // namespace terrace::front
