// SPDX-License-Identifier: Apache-2.0
#include "front/doors/doors.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace terrace::front {

bool admits(const config::Config& config, const Peer& peer, std::uint32_t uid) {
  if (peer.admin) return uid == 0 || uid == getuid();
  return config.tenants.at(peer.tenant.socket).admits(uid, getuid());
}

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
