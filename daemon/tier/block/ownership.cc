// SPDX-License-Identifier: Apache-2.0
#include "tier/block/ownership.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fd.h"
#include "tier/block/raw_device.h"

namespace terrace::tier {
namespace {

constexpr const char* kAttribute = "user.terrace.block";
constexpr char kVersion = '1';

// Refuses a file that is neither empty nor marked.
Result<void> check(const std::string& path, int fd) {
  struct stat facts{};
  if (fstat(fd, &facts) != 0)
    return fail(ErrorCode::kInternal, fmt::format("block tier {}: {}", path, std::strerror(errno)), errno);
  if (S_ISBLK(facts.st_mode)) return check_device_header(path, fd);
  std::array<char, 16> mark{};
  if (facts.st_size == 0 || fgetxattr(fd, kAttribute, mark.data(), mark.size()) > 0) return {};
  return fail(
      ErrorCode::kFailedPrecondition,
      fmt::format("block tier {}: a file of {} bytes that no terraced made is there; name another path, or remove "
                  "it if it may go",
                  path, facts.st_size));
}

}  // namespace

Result<void> own_file(const std::string& path, int fd) {
  if (auto good = check(path, fd); !good || is_block_device(path)) return good;
  if (fsetxattr(fd, kAttribute, &kVersion, sizeof kVersion, 0) != 0 && errno != ENOTSUP)
    return fail(ErrorCode::kInternal, fmt::format("block tier {}: cannot be marked: {}", path, std::strerror(errno)),
                errno);
  return {};
}

Result<void> check_file(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (file && is_block_device(path)) {
    if (flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) return {};
    if (auto claim = claim_device(path); !claim) return std::unexpected(std::move(claim.error()));
  }
  if (file) return check(path, file.get());
  if (errno == ENOENT) return {};
  const int error = errno;
  return fail(error == EACCES || error == EPERM || error == EROFS ? ErrorCode::kPermissionDenied
                                                                  : ErrorCode::kFailedPrecondition,
              fmt::format("block tier {}: cannot be opened for reading and writing: {}", path, std::strerror(error)),
              error);
}

}  // namespace terrace::tier
