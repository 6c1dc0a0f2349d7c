// SPDX-License-Identifier: Apache-2.0
#include "front/doors/listener.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace terrace::front {
namespace {

constexpr int kBacklog = 128;

std::unexpected<Error> bind_fail(const std::string& path, const char* call) {
  const int error = errno;
  return fail(ErrorCode::kFailedPrecondition, fmt::format("socket {}: {}: {}", path, call, std::strerror(error)),
              error);
}

Fd open_spare() { return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

Listener::Listener(std::string path, Fd lock, Fd socket)
    : path_(std::move(path)), lock_(std::move(lock)), socket_(std::move(socket)), spare_(open_spare()) {}

Listener::~Listener() {
  if (!socket_) return;
  unlink(path_.c_str());
}

Result<Listener> Listener::bind(const std::string& path, int socket_type, mode_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("socket path \"{}\" has {} bytes; 1 to 107 are possible", path, path.size()));
  std::memcpy(address.sun_path, path.data(), path.size());

  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  Fd lock(open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return bind_fail(path, "making its lock file");
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("socket {}: another terraced serves there; stop it, or configure other sockets", path),
                errno);

  Fd socket(::socket(AF_UNIX, socket_type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return bind_fail(path, "socket");
  struct stat there{};
  if (lstat(path.c_str(), &there) == 0 && !S_ISSOCK(there.st_mode)) {
    return fail(
        ErrorCode::kFailedPrecondition,
        fmt::format("socket {}: a file that is no socket is there; configure another path, or remove it if it may go",
                    path));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return bind_fail(path, "removing what a former daemon left");
  // A socket takes its mode from its inode at bind, so that there is no moment at which it is more open.
  if (fchmod(socket.get(), mode) != 0) return bind_fail(path, "fchmod");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return bind_fail(path, "bind");
  if (chmod(path.c_str(), mode) != 0) return bind_fail(path, "chmod");
  if (listen(socket.get(), kBacklog) != 0) return bind_fail(path, "listen");
  return Listener(path, std::move(lock), std::move(socket));
}

std::optional<Accepted> Listener::accept() {
  Fd connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection) {
    if (errno == EMFILE || errno == ENFILE) {
      spare_.reset();
      connection = Fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      connection.reset();
      spare_ = open_spare();
    }
    return std::nullopt;
  }
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return std::nullopt;
  return Accepted{std::move(connection), {credentials.pid, credentials.uid}};
}

}  // namespace terrace::front
