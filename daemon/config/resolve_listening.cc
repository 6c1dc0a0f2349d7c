// SPDX-License-Identifier: Apache-2.0
// Where the daemon is to listen.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "config/endpoint.h"
#include "config/resolve.h"
#include "config/resolve_parts.h"
#include "config/sections.h"

namespace terrace::config {
namespace {

namespace fs = std::filesystem;

// Whether this process may do `mode` (access(2)) to `path`; else errno.
int refusal(const fs::path& path, int mode) {
  return ::faccessat(AT_FDCWD, path.c_str(), mode, AT_EACCESS) == 0 ? 0 : errno;
}

// The folder itself where it is there; else the nearest above it, in which it is to be made.
fs::path nearest_above(fs::path folder) {
  std::error_code ignored;
  while (folder.has_relative_path() && !fs::exists(fs::symlink_status(folder, ignored))) folder = folder.parent_path();
  return folder;
}

std::unexpected<Error> refused(const std::string& path, const std::string& what, int error = 0) {
  const bool may_not = error == EACCES || error == EPERM || error == EROFS;
  return fail(may_not ? ErrorCode::kPermissionDenied : ErrorCode::kFailedPrecondition,
              fmt::format("\"{}\"{}", path, what), error);
}

}  // namespace

// What lies at a socket's path is replaced if it is a socket, and is somebody's file otherwise. Its lock lies beside
// it.
Result<void> check_socket(const std::string& path) {
  std::error_code unreadable;
  const fs::file_status there = fs::symlink_status(path, unreadable);
  if (fs::exists(there) && !fs::is_socket(there))
    return refused(path, " is there and is no socket; choose another path, or remove it if it may go");
  const fs::path folder = nearest_above(fs::path(path).parent_path());
  if (!fs::is_directory(folder, unreadable))
    return refused(path, fmt::format(": {} is no folder; choose another path", folder.string()));
  if (const int error = refusal(folder, W_OK | X_OK); error != 0)
    return refused(path,
                   fmt::format(": nothing can be made in {}: {}; choose a folder that this user may write",
                               folder.string(), std::strerror(error)),
                   error);
  const std::string lock = path + ".lock";
  const fs::file_status locked = fs::symlink_status(lock, unreadable);
  if (!fs::exists(locked)) return {};
  const int error = fs::is_regular_file(locked) ? refusal(lock, R_OK | W_OK) : EEXIST;
  if (error == 0) return {};
  return refused(
      path, fmt::format(": its lock {} cannot be taken: {}; choose another path", lock, std::strerror(error)), error);
}

void check_listening(const Config& config, Findings& findings) {
  for (const ConfiguredSocket& socket : configured_sockets(config)) {
    if (socket.path->empty()) continue;  // complained of
    if (const auto good = check_socket(*socket.path); !good)
      findings.complain(*socket.origin, socket.key, good.error().message);
  }
  if (config.metrics_address.empty()) return;
  const auto endpoint = parse_endpoint(config.metrics_address);
  const auto good = endpoint ? check_endpoint(*endpoint) : std::unexpected(endpoint.error());
  if (!good)
    findings.complain(config.origin, "metrics_address",
                      fmt::format("{}; or write \"\" for no metrics", good.error().message));
}

}  // namespace terrace::config
