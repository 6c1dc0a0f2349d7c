// SPDX-License-Identifier: Apache-2.0
#include "service/notify_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"

namespace terrace::service {

unsigned notify_address(std::string_view path, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  if (path.size() < 2 || path.size() >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) return 0;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  return static_cast<unsigned>(offsetof(sockaddr_un, sun_path) + path.size());
}

Result<NotifySocket> NotifySocket::from_environment() {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  const socklen_t length = path == nullptr ? 0 : notify_address(path, address);
  if (length == 0) return NotifySocket();
  Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    const int error = errno;
    return fail(
        ErrorCode::kUnavailable,
        fmt::format("NOTIFY_SOCKET is {}, but connecting there: {}; unset it where nothing supervises this process",
                    path, std::strerror(error)),
        error);
  }
  return NotifySocket(std::move(socket));
}

Result<bool> NotifySocket::send(std::string_view assignments, std::span<const int> descriptors) const {
  TERRACE_CHECK(assignments.size() < kMessageBytesMax && descriptors.size() <= kMessageDescriptorsMax);
  if (!socket_) return true;
  iovec text{const_cast<char*>(assignments.data()), assignments.size()};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMessageDescriptorsMax * sizeof(int))> control{};
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  while (sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EAGAIN) return false;
    if (error == ETOOMANYREFS) {
      return fail(
          ErrorCode::kResourceExhausted,
          "more descriptors are on their way between processes than this user may have open; raise LimitNOFILE=",
          error);
    }
    return fail(ErrorCode::kUnavailable,
                fmt::format("the supervisor's notification socket: {}; it has ended, or refuses", std::strerror(error)),
                error);
  }
  return true;
}

}  // namespace terrace::service
