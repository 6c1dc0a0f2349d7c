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

// What lies at a socket's path is replaced if it is a socket, and is somebody's file otherwise. Its lock lies beside
// it.
std::string why_no_socket(const std::string& path) {
  std::error_code unreadable;
  const fs::file_status there = fs::symlink_status(path, unreadable);
  if (fs::exists(there) && !fs::is_socket(there))
    return fmt::format("\"{}\" is there and is no socket; choose another path, or remove it if it may go", path);
  const fs::path folder = nearest_above(fs::path(path).parent_path());
  if (!fs::is_directory(folder, unreadable))
    return fmt::format("\"{}\": {} is no folder; choose another path", path, folder.string());
  if (const int error = refusal(folder, W_OK | X_OK); error != 0)
    return fmt::format("\"{}\": nothing can be made in {}: {}; choose a folder that this user may write", path,
                       folder.string(), std::strerror(error));
  const std::string lock = path + ".lock";
  const fs::file_status locked = fs::symlink_status(lock, unreadable);
  if (!fs::exists(locked)) return "";
  const int error = fs::is_regular_file(locked) ? refusal(lock, R_OK | W_OK) : EEXIST;
  return error == 0 ? ""
                    : fmt::format("\"{}\": its lock {} cannot be taken: {}; choose another path", path, lock,
                                  std::strerror(error));
}

}  // namespace

void check_listening(const Config& config, Findings& findings) {
  for (const ConfiguredSocket& socket : configured_sockets(config)) {
    if (socket.path->empty()) continue;  // complained of
    const std::string wrong = why_no_socket(*socket.path);
    if (!wrong.empty()) findings.complain(*socket.origin, socket.key, wrong);
  }
  if (config.metrics_address.empty()) return;
  const auto endpoint = parse_endpoint(config.metrics_address);
  const auto good = endpoint ? check_endpoint(*endpoint) : std::unexpected(endpoint.error());
  if (!good)
    findings.complain(config.origin, "metrics_address",
                      fmt::format("{}; or write \"\" for no metrics", good.error().message));
}

}  // namespace terrace::config
