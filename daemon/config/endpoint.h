// SPDX-License-Identifier: Apache-2.0
// An address that the daemon listens on over TCP.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "terrace/error.h"

namespace terrace::config {

struct Endpoint {
  std::string host;  // of IPv6 the address, without its brackets
  std::uint16_t port = 0;
  bool is_v6 = false;
};

// "HOST:PORT", or "[ADDRESS]:PORT" of IPv6. InvalidArgument whose message says what is wrong with it and what would be
// right.
Result<Endpoint> parse_endpoint(std::string_view address);

using Resolved = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
// Asks the resolver. InvalidArgument if the host has no address.
Result<Resolved> look_up(const Endpoint& endpoint);

// InvalidArgument if this machine could never listen there: the host has no address, or none of this machine's, or the
// port is not this user's. That another process listens there now is no error. Binds it for a moment, and listens not.
Result<void> check_endpoint(const Endpoint& endpoint);

}  // namespace terrace::config
