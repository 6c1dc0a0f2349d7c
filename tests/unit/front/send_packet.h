// SPDX-License-Identifier: Apache-2.0
// A packet with descriptors on a socket of messages, as a trainer sends it or as none would.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "base/check.h"

namespace terrace::front {

inline constexpr std::size_t kPassedMax = 64;

// Whether all of it went; not where the other side has closed.
inline bool send_packet(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors, int flags = 0) {
  TERRACE_CHECK(descriptors.size() <= kPassedMax);
  iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kPassedMax)> control{};
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket, &message, flags | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

}  // namespace terrace::front
