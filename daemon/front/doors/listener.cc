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

std::filesystem::path folder_of(const std::string& path) { return std::filesystem::path(path).parent_path(); }

mode_t mode_of(const std::filesystem::path& folder) {
  struct stat facts{};
  return stat(folder.c_str(), &facts) == 0 ? facts.st_mode & 07777 : 0755;
}

Result<Fd> take_lock(const std::string& path) {
  Fd lock(open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return bind_fail(path, "making its lock file");
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("socket {}: another terraced serves there; stop it, or configure other sockets", path),
                errno);
  return lock;
}

// With the lock.
Result<Fd> bind_socket(const std::string& path, int socket_type, mode_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
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
  return socket;
}

}  // namespace

Listener::Listener(std::string path, int socket_type, mode_t mode, Fd lock, Fd socket)
    : path_(std::move(path)),
      socket_type_(socket_type),
      mode_(mode),
      folder_mode_(mode_of(folder_of(path_))),
      identity_(identity_of(path_)),
      lock_(std::move(lock)),
      socket_(std::move(socket)),
      spare_(open_spare()) {}

Listener::~Listener() {
  if (socket_ && identity_of(path_) == identity_) unlink(path_.c_str());
}

Result<Listener> Listener::bind(const std::string& path, int socket_type, mode_t mode) {
  if (path.empty() || path.size() >= sizeof sockaddr_un::sun_path)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("socket path \"{}\" has {} bytes; 1 to 107 are possible", path, path.size()));
  std::error_code ignored;
  std::filesystem::create_directories(folder_of(path), ignored);
  auto lock = take_lock(path);
  if (!lock) return std::unexpected(lock.error());
  auto socket = bind_socket(path, socket_type, mode);
  if (!socket) return std::unexpected(socket.error());
  return Listener(path, socket_type, mode, std::move(*lock), std::move(*socket));
}

Listener::Identity Listener::identity_of(const std::string& path) {
  struct stat facts{};
  return lstat(path.c_str(), &facts) == 0 ? Identity{facts.st_dev, facts.st_ino} : Identity{};
}

bool Listener::has_lock_in_place() const {
  struct stat locked{};
  return fstat(lock_.get(), &locked) == 0 && identity_of(lock_path()) == Identity{locked.st_dev, locked.st_ino};
}

bool Listener::in_place() const { return identity_of(path_) == identity_ && has_lock_in_place(); }

Result<Fd> Listener::renew() {
  std::error_code failed;
  const bool made = std::filesystem::create_directories(folder_of(path_), failed);
  if (failed) {
    errno = failed.value();
    return bind_fail(path_, "making its folder again");
  }
  if (made && chmod(folder_of(path_).c_str(), folder_mode_) != 0) return bind_fail(path_, "chmod of its folder");
  if (!has_lock_in_place()) {
    auto lock = take_lock(path_);
    if (!lock) return std::unexpected(lock.error());
    lock_ = std::move(*lock);
  }
  auto socket = bind_socket(path_, socket_type_, mode_);
  if (!socket) return std::unexpected(socket.error());
  identity_ = identity_of(path_);
  return std::exchange(socket_, std::move(*socket));
}

std::optional<Accepted> Listener::accept() {
  Fd connection(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool on_spare = !connection && (errno == EMFILE || errno == ENFILE);
  if (on_spare) {
    spare_.reset();
    connection = Fd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  ucred credentials{};
  socklen_t length = sizeof credentials;
  const bool known = connection && getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0;
  if (on_spare) {
    connection.reset();
    spare_ = open_spare();
  }
  if (!known) return std::nullopt;
  return Accepted{std::move(connection), {credentials.pid, credentials.uid}};
}

}  // namespace terrace::front
