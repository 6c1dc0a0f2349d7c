// SPDX-License-Identifier: Apache-2.0
#include "config/endpoint.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/fd.h"

namespace terrace::config {
namespace {

constexpr unsigned kPortMax = 65535;

}  // namespace

Result<Endpoint> parse_endpoint(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("is \"{}\"; it must be HOST:PORT such as \"127.0.0.1:9464\"", address));
  unsigned port = 0;
  const char* end = address.data() + address.size();
  const auto [rest, error] = std::from_chars(address.data() + colon + 1, end, port);
  if (rest != end || error == std::errc::invalid_argument)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("is \"{}\"; it must be HOST:PORT with a number for the port, such as \"127.0.0.1:9464\"", address));
  if (error != std::errc() || port > kPortMax)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("is \"{}\"; a port is at most {}, as in \"127.0.0.1:9464\"", address, kPortMax));
  std::string_view host = address.substr(0, colon);
  const bool in_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (in_brackets) host = host.substr(1, host.size() - 2);
  const bool has_colon = host.find(':') != std::string_view::npos;
  if (in_brackets != has_colon)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("is \"{}\"; an IPv6 address, and nothing else, stands in brackets, such as \"[::1]:9464\"",
                            address));
  return Endpoint{std::string(host), static_cast<std::uint16_t>(port), in_brackets};
}

Result<Resolved> look_up(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_family = endpoint.is_v6 ? AF_INET6 : AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV | (endpoint.is_v6 ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the host \"{}\" cannot be resolved ({}); name an address of this machine, such as "
                            "\"127.0.0.1\"",
                            endpoint.host, ::gai_strerror(error)));
  return Resolved(found, ::freeaddrinfo);
}

Result<void> check_endpoint(const Endpoint& endpoint) {
  const auto resolved = look_up(endpoint);
  if (!resolved) return std::unexpected(resolved.error());
  const addrinfo* found = resolved->get();
  const Fd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (socket && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0)
    return {};
  const int error = errno;
  if (error == EADDRINUSE) return {};
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("{} port {} cannot be listened on: {}; name an address of this machine, and a port that this user "
                  "may have, such as \"127.0.0.1:9464\"",
                  endpoint.host, endpoint.port, std::strerror(error)),
      error);
}

}  // namespace terrace::config
