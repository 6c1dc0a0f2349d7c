// SPDX-License-Identifier: Apache-2.0
#include "tier/block/block_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "tier/block/ownership.h"
#include "tier/block/probe.h"

namespace terrace::tier {
namespace {

// A killed daemon's lock stays until the kernel has finished its I/O; nobody else's goes away by waiting.
constexpr std::chrono::milliseconds kLockRetry{20};
constexpr int kLockTriesMax = 100;

ErrorCode code_of(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return ErrorCode::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kPermissionDenied;
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kInternal;
  }
}

std::unexpected<Error> path_fail(ErrorCode code, const std::string& path, const std::string& what, int error = 0) {
  return fail(code, fmt::format("block tier {}: {}", path, what), error);
}

std::unexpected<Error> open_fail(const std::string& path, int error) {
  if (error == EINVAL) {
    const Fd plain(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    return path_fail(
        ErrorCode::kFailedPrecondition, path,
        fmt::format("its file system ({}) does no direct I/O (O_DIRECT); use a file on ext4, xfs or another "
                    "local file system, or a block device",
                    plain ? file_system_name(plain.get()) : "unknown"),
        error);
  }
  if (error == EBUSY) {
    return path_fail(ErrorCode::kFailedPrecondition, path,
                     "the device is in use (mounted, or part of an array); give one that is not", error);
  }
  return path_fail(code_of(error), path,
                   fmt::format("cannot be opened for reading and writing: {}", std::strerror(error)), error);
}

struct Opened {
  Fd fd;
  bool made = false;
  bool regular = true;
};

Result<Opened> open_path(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_DIRECT | O_CLOEXEC;
  struct stat facts{};
  if (stat(path.c_str(), &facts) == 0) {
    if (!S_ISREG(facts.st_mode) && !S_ISBLK(facts.st_mode)) {
      return path_fail(ErrorCode::kFailedPrecondition, path, "is neither a regular file nor a block device");
    }
    const bool regular = S_ISREG(facts.st_mode);
    Fd fd(::open(path.c_str(), regular ? kFlags : kFlags | O_EXCL));
    if (!fd) return open_fail(path, errno);
    return Opened{.fd = std::move(fd), .made = false, .regular = regular};
  }
  Fd fd(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
  if (fd) return Opened{.fd = std::move(fd), .made = true, .regular = true};
  const int error = errno;
  auto refused = open_fail(path, error);
  if (error == EINVAL) unlink(path.c_str());  // some file systems make the file before they refuse O_DIRECT
  return refused;
}

Result<void> lock(const std::string& path, int fd) {
  for (int tries = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; ++tries) {
    const int error = errno;
    if (error != EWOULDBLOCK) {
      return path_fail(code_of(error), path, fmt::format("cannot be locked: {}", std::strerror(error)), error);
    }
    const auto holder = lock_holder(fd);
    if (holder && !holder->name.empty()) {
      return path_fail(ErrorCode::kFailedPrecondition, path,
                       fmt::format("process {} ({}) holds it; stop that daemon or give this one another path",
                                   holder->pid, holder->name),
                       error);
    }
    if (tries == kLockTriesMax) {
      return path_fail(ErrorCode::kFailedPrecondition, path,
                       "another process holds it (perhaps a daemon in another container); stop that one or give this "
                       "one another path",
                       error);
    }
    std::this_thread::sleep_for(kLockRetry);
  }
  return {};
}

// Whether the path still leads to this file: a daemon that closes unlinks its file before it lets go of the lock.
bool is_same_file(const std::string& path, int fd) {
  struct stat by_path{};
  struct stat by_fd{};
  return stat(path.c_str(), &by_path) == 0 && fstat(fd, &by_fd) == 0 && by_path.st_ino == by_fd.st_ino &&
         by_path.st_dev == by_fd.st_dev;
}

Result<void> reserve_file(const std::string& path, int fd, std::uint64_t bytes) {
  struct stat before{};
  if (fstat(fd, &before) != 0) return path_fail(ErrorCode::kInternal, path, std::strerror(errno), errno);
  const auto free_bytes = file_system_free_bytes(fd);
  if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) {
    if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) return {};
    return path_fail(code_of(errno), path, fmt::format("cannot be sized: {}", std::strerror(errno)), errno);
  }
  const int error = errno;
  (void)!ftruncate(fd, before.st_size);  // what it got so far goes back
  if (error == EOPNOTSUPP) {
    return path_fail(
        ErrorCode::kFailedPrecondition, path,
        fmt::format("its file system ({}) cannot reserve space (fallocate); use ext4, xfs or a block device",
                    file_system_name(fd)),
        error);
  }
  return path_fail(code_of(error), path,
                   fmt::format("{} cannot be reserved ({}): {} are free, and the file holds {} already; lower the "
                               "capacity or make room",
                               format_bytes(bytes), std::strerror(error), format_bytes(free_bytes),
                               format_bytes(static_cast<std::uint64_t>(before.st_blocks) * 512)),
                   error);
}

Result<void> check_device(const std::string& path, int fd, std::uint64_t bytes) {
  std::uint64_t size = 0;
  if (ioctl(fd, BLKGETSIZE64, &size) != 0) {
    return path_fail(ErrorCode::kInternal, path, fmt::format("its size: {}", std::strerror(errno)), errno);
  }
  if (size >= bytes) return {};
  return path_fail(ErrorCode::kResourceExhausted, path,
                   fmt::format("the device holds {}, and {} are configured for it; lower the capacity",
                               format_bytes(size), format_bytes(bytes)));
}

Result<std::uint64_t> alignment_of(const std::string& path, int fd) {
  auto alignment = direct_alignment(fd);
  if (!alignment) {
    return path_fail(alignment.error().code, path, alignment.error().message, alignment.error().system_error);
  }
  if (*alignment <= BlockFile::kAlignmentMax) return alignment;
  return path_fail(ErrorCode::kFailedPrecondition, path,
                   fmt::format("direct I/O must be aligned to {} there, and at most {} will do",
                               format_bytes(*alignment), format_bytes(BlockFile::kAlignmentMax)));
}

Result<Opened> open_locked(const std::string& path) {
  constexpr int kTriesMax = 10;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    auto opened = open_path(path);
    if (!opened) return opened;
    if (auto locked = lock(path, opened->fd.get()); !locked) return std::unexpected(std::move(locked.error()));
    if (is_same_file(path, opened->fd.get())) return opened;
  }
  return path_fail(ErrorCode::kUnavailable, path, "is being replaced all the time; give this daemon a path of its own");
}

}  // namespace

Result<void> BlockFile::add(const std::string& path, std::uint64_t bytes) {
  auto opened = open_locked(path);
  if (!opened) return std::unexpected(std::move(opened.error()));
  const int fd = opened->fd.get();
  auto done = opened->regular ? own_file(path, fd) : check_device(path, fd, bytes);
  if (done && opened->regular) done = reserve_file(path, fd, bytes);
  if (done) {
    auto alignment = alignment_of(path, fd);
    if (alignment) {
      alignment_ = std::max(alignment_, *alignment);
    } else {
      done = std::unexpected(std::move(alignment.error()));
    }
  }
  if (!done) {
    if (opened->made) unlink(path.c_str());
    return done;
  }
  files_.push_back({.path = path, .fd = std::move(opened->fd), .regular = opened->regular, .made = opened->made});
  return {};
}

Result<std::unique_ptr<BlockFile>> BlockFile::open(const BlockOptions& options) {
  if (options.paths.empty()) return fail(ErrorCode::kInvalidArgument, "the block tier needs at least one path");
  const std::uint64_t stripe_row = kStripeBytes * options.paths.size();
  const std::uint64_t rows = options.capacity_bytes / stripe_row;
  if (rows == 0) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the block tier's capacity of {} is less than {}, a stripe of 1 MiB on each of its {} paths",
                    format_bytes(options.capacity_bytes), format_bytes(stripe_row), options.paths.size()));
  }
  std::unique_ptr<BlockFile> file(new BlockFile());
  for (const std::string& path : options.paths) {
    if (auto added = file->add(path, rows * kStripeBytes); !added) {
      file->unlink_files(true);
      return std::unexpected(std::move(added.error()));
    }
  }
  file->stripes_ = rows * options.paths.size();
  auto checksums = ChecksumTable::create(checksum_entries(file->capacity_bytes()));
  if (!checksums) return std::unexpected(std::move(checksums.error()));
  file->checksums_ = std::move(*checksums);
  file->remove_on_close_ = options.remove_on_close;
  return file;
}

Result<void> BlockFile::adopt_checksums(Fd memory) {
  auto adopted = ChecksumTable::adopt(std::move(memory), checksum_entries(capacity_bytes()));
  if (!adopted) return std::unexpected(std::move(adopted.error()));
  checksums_ = std::move(*adopted);
  return {};
}

void BlockFile::unlink_files(bool made_only) {
  for (const File& file : files_) {
    if (file.regular && (file.made || !made_only)) unlink(file.path.c_str());
  }
}

BlockFile::~BlockFile() {
  if (remove_on_close_) unlink_files(false);
}

std::vector<int> BlockFile::descriptors() const {
  std::vector<int> descriptors;
  descriptors.reserve(files_.size());
  for (const File& file : files_) descriptors.push_back(file.fd.get());
  return descriptors;
}

BlockFile::Piece BlockFile::locate(std::uint64_t offset, std::uint64_t bytes) const {
  TERRACE_CHECK(bytes > 0 && offset <= capacity_bytes() && bytes <= capacity_bytes() - offset);
  const std::uint64_t files = files_.size();
  if (files == 1) return {.file = 0, .offset = offset, .bytes = bytes};
  const std::uint64_t stripe = offset / kStripeBytes;
  const std::uint64_t within = offset % kStripeBytes;
  return {.file = static_cast<std::size_t>(stripe % files),
          .offset = stripe / files * kStripeBytes + within,
          .bytes = std::min(bytes, kStripeBytes - within)};
}

}  // namespace terrace::tier
