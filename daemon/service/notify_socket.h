// SPDX-License-Identifier: Apache-2.0
// The datagram socket to whoever supervises this process (sd_notify(3)): systemd, or `terraced supervise`.
#pragma once

#include <span>
#include <string_view>

#include "base/fd.h"
#include "terrace/error.h"

struct sockaddr_un;  // NOLINT(readability-identifier-naming): the system's

namespace terrace::service {

// A message has at most this many bytes and descriptors: the receiver's bound (systemd's), and the kernel's.
inline constexpr std::size_t kMessageBytesMax = 4096;
inline constexpr std::size_t kMessageDescriptorsMax = 253;

// Fills in the address that NOTIFY_SOCKET's `path` means ('@' begins an abstract one) and returns its length; 0: it is
// no address of a Unix socket.
unsigned notify_address(std::string_view path, sockaddr_un& address);

class NotifySocket {
 public:
  // Says nothing to nobody: there is no supervisor.
  NotifySocket() = default;
  // Connects to $NOTIFY_SOCKET; an empty one where that is not set, or is no Unix socket's address. kUnavailable: it is
  // set and nobody listens there.
  static Result<NotifySocket> from_environment();

  explicit operator bool() const { return static_cast<bool>(socket_); }

  // Sends newline-separated assignments ("READY=1\nSTATUS=serving") and `descriptors` with them, without blocking.
  // False: the supervisor has not read what was sent before; try again when descriptor() is writable. Errors:
  // kUnavailable, the supervisor has gone; kResourceExhausted, the kernel carries no more descriptors for this user
  // now. Thread-safe.
  Result<bool> send(std::string_view assignments, std::span<const int> descriptors = {}) const;

  // To wait for POLLOUT on; -1 for an empty one.
  int descriptor() const { return socket_.get(); }

 private:
  explicit NotifySocket(Fd socket) : socket_(std::move(socket)) {}

  Fd socket_;  // connected: only then does POLLOUT mean that the receiver's queue has room
};

}  // namespace terrace::service
