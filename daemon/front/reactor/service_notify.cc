// SPDX-License-Identifier: Apache-2.0
#include "front/reactor/service_notify.h"

#include <utility>

#include "service/environment.h"

namespace terrace::front {

ServiceNotify::ServiceNotify() {
  auto socket = service::NotifySocket::from_environment();
  if (!socket || !*socket) return;
  socket_ = std::move(*socket);
  watchdog_period_ = service::watchdog_period_from_environment();
}

void ServiceNotify::send(std::string_view assignments) { static_cast<void>(socket_.send(assignments)); }

void ServiceNotify::feed_watchdog(Time now) {
  if (watchdog_period_.count() <= 0 || now - last_fed_ < watchdog_period_) return;
  send("WATCHDOG=1");
  last_fed_ = now;
}

}  // namespace terrace::front
