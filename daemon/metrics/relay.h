// SPDX-License-Identifier: Apache-2.0
// Carries connections of an IPv6 address to a server of IPv4: the metrics library's HTTP server, as distributions build
// it, has no IPv6.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/time.h"
#include "terrace/error.h"

namespace terrace::metrics {

// On a thread of its own, until destroyed; then its connections are closed.
class Relay {
 public:
  // More at a time wait in the listening socket's queue.
  static constexpr std::size_t kConnectionsMax = 16;
  // One on which nothing comes for so long is closed.
  static constexpr Duration kIdleMax = std::chrono::seconds(10);

  // `listening`: a listening socket. `port`: where the server listens on loopback. ResourceExhausted: no descriptor is
  // left.
  static Result<std::unique_ptr<Relay>> create(Fd listening, std::uint16_t port);
  virtual ~Relay() = default;
};

}  // namespace terrace::metrics
