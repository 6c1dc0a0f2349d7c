// SPDX-License-Identifier: Apache-2.0
// Tells the service manager how the daemon is (sd_notify(3)'s datagram protocol); silent where there is none.
#pragma once

#include <string_view>

#include "base/time.h"
#include "service/notify_socket.h"

namespace terrace::front {

class ServiceNotify {
 public:
  // Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from the environment.
  ServiceNotify();

  // "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=...": newline-separated assignments. Failure is ignored: the
  // manager's absence is no reason to stop serving.
  void send(std::string_view assignments);
  // How often WATCHDOG=1 is due (half of what the manager allows); zero: no watchdog.
  Duration watchdog_period() const { return watchdog_period_; }
  // Says WATCHDOG=1 when it is due; to be called more often than that.
  void feed_watchdog(Time now);

 private:
  service::NotifySocket socket_;
  Duration watchdog_period_{0};
  Time last_fed_{};
};

}  // namespace terrace::front
