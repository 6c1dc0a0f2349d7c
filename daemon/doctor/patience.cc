// SPDX-License-Identifier: Apache-2.0
#include "doctor/patience.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/fd.h"

namespace terrace::doctor {
namespace {

// Whether the process has ended by then; true if that cannot be told.
bool ended_by(int process, std::chrono::steady_clock::time_point end) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd polled{process, POLLIN, 0};
    const int ready = ::poll(&polled, 1, left > 0 ? static_cast<int>(left) : 0);
    if (ready >= 0) return ready == 1;
    if (errno != EINTR) return true;
  }
}

}  // namespace

bool ends_within(std::chrono::milliseconds limit, const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child < 0) return true;
  if (child == 0) {
    work();
    ::_exit(0);
  }
  const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  const bool ended = !process || ended_by(process.get(), std::chrono::steady_clock::now() + limit);
  if (!ended) ::kill(child, SIGKILL);
  // One that hangs in the kernel is not waited for.
  ::waitpid(child, nullptr, ended ? 0 : WNOHANG);
  return ended;
}

}  // namespace terrace::doctor
