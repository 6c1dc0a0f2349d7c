// SPDX-License-Identifier: Apache-2.0
#include "front/reactor/stop_signals.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>

namespace terrace::front {

Result<Fd> stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  Fd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return fail(ErrorCode::kResourceExhausted, "no descriptor is left for signals", errno);
  return signals;
}

}  // namespace terrace::front
