// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/session.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>

#include "base/check.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace terrace::front {

Result<Fd> process_of(int connection, std::int32_t pid) {
  if (connection >= 0) {
    int descriptor = -1;
    socklen_t length = sizeof descriptor;
    if (getsockopt(connection, SOL_SOCKET, SO_PEERPIDFD, &descriptor, &length) == 0) return Fd(descriptor);
  }
  Fd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process) return fail(ErrorCode::kUnavailable, fmt::format("the client's process {} is gone", pid), errno);
  return process;
}

Token make_token() {
  Token token;
  TERRACE_CHECK(getrandom(token.data(), token.size(), 0) == static_cast<ssize_t>(token.size()));
  return token;
}

}  // namespace terrace::front
