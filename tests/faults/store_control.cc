// SPDX-License-Identifier: Apache-2.0
#include "faults/store_control.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/check.h"
#include "base/fd.h"

namespace terrace::faults {
namespace {

sockaddr_un control_address(const std::filesystem::path& folder) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = folder / "control";
  TERRACE_CHECK(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace

int listen_for_commands(const std::filesystem::path& folder) {
  const sockaddr_un address = control_address(folder);
  Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  unlink(address.sun_path);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return -1;
  if (listen(listener.get(), 16) != 0) return -1;
  return listener.release();
}

std::optional<std::string> ask(const std::filesystem::path& folder, const std::string& command) {
  const sockaddr_un address = control_address(folder);
  const Fd connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return std::nullopt;
  if (::send(connection.get(), command.data(), command.size(), MSG_NOSIGNAL) < 0) return std::nullopt;
  std::string answer(kControlBytesMax, '\0');
  const ssize_t count = recv(connection.get(), answer.data(), answer.size(), 0);
  if (count <= 0) return std::nullopt;
  answer.resize(static_cast<std::size_t>(count));
  return answer;
}

}  // namespace terrace::faults
