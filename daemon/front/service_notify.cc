// SPDX-License-Identifier: Apache-2.0
#include "front/service_notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace terrace::front {
namespace {

long long number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  long long value = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), value);
  return value;
}

}  // namespace

ServiceNotify::ServiceNotify() {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  path_ = path;
  socket_ = Fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const long long microseconds = number_from_environment("WATCHDOG_USEC");
  const long long pid = number_from_environment("WATCHDOG_PID");
  if (microseconds > 0 && (pid == 0 || pid == getpid())) watchdog_period_ = std::chrono::microseconds(microseconds / 2);
}

void ServiceNotify::send(std::string_view assignments) {
  sockaddr_un address{};
  if (!socket_ || path_.size() >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  if (path_[0] == '@') address.sun_path[0] = '\0';
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path_.size());
  static_cast<void>(sendto(socket_.get(), assignments.data(), assignments.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
                           reinterpret_cast<const sockaddr*>(&address), length));
}

}  // namespace terrace::front
