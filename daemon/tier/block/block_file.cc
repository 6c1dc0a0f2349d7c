// SPDX-License-Identifier: Apache-2.0
#include "tier/block/block_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

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
#include "tier/block/raw_device.h"

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
                    "local file system",
                    plain ? file_system_name(plain.get()) : "unknown"),
        error);
  }
  return path_fail(code_of(error), path,
                   fmt::format("cannot be opened for reading and writing: {}", std::strerror(error)), error);
}

struct Opened {
  Fd fd;
  bool made = false;
};

Result<Opened> open_path(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_DIRECT | O_CLOEXEC;
  struct stat facts{};
  if (stat(path.c_str(), &facts) == 0) {
    if (!S_ISREG(facts.st_mode) && !S_ISBLK(facts.st_mode)) {
      return path_fail(ErrorCode::kFailedPrecondition, path,
                       "is not a regular file; name one, or a path where the daemon can make one, or a block device");
    }
    Fd fd(::open(path.c_str(), kFlags));
    if (!fd) return open_fail(path, errno);
    return Opened{.fd = std::move(fd), .made = false};
  }
  Fd fd(::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0600));
  if (fd) return Opened{.fd = std::move(fd), .made = true};
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
  if (stat(path.c_str(), &by_path) != 0 || fstat(fd, &by_fd) != 0) return false;
  if (S_ISBLK(by_path.st_mode) && S_ISBLK(by_fd.st_mode)) return by_path.st_rdev == by_fd.st_rdev;
  return by_path.st_ino == by_fd.st_ino && by_path.st_dev == by_fd.st_dev;
}

Result<void> reserve_file(const std::string& path, int fd, std::uint64_t bytes) {
  struct stat before{};
  if (fstat(fd, &before) != 0) return path_fail(ErrorCode::kInternal, path, std::strerror(errno), errno);
  const auto free_bytes = file_system_free_bytes(fd);
  if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return {};
  const int error = errno;
  (void)!ftruncate(fd, before.st_size);  // what it got so far goes back
  if (error == EOPNOTSUPP) {
    return path_fail(
        ErrorCode::kFailedPrecondition, path,
        fmt::format("its file system ({}) cannot reserve space (fallocate); use ext4 or xfs", file_system_name(fd)),
        error);
  }
  return path_fail(code_of(error), path,
                   fmt::format("{} cannot be reserved ({}): {} are free, and the file holds {} already; lower the "
                               "capacity or make room",
                               format_bytes(bytes), std::strerror(error), format_bytes(free_bytes),
                               format_bytes(static_cast<std::uint64_t>(before.st_blocks) * 512)),
                   error);
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

// Takes the lock if it is free: whether it did.
Result<bool> try_lock(const std::string& path, int fd) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
  const int error = errno;
  if (error == EWOULDBLOCK) return false;
  return path_fail(code_of(error), path, fmt::format("cannot be locked: {}", std::strerror(error)), error);
}

struct Candidate {
  Opened opened;
  bool locked = false;
};

Result<Candidate> open_locked(const std::string& path, bool may_wait) {
  constexpr int kTriesMax = 10;
  for (int tries = 0; tries < kTriesMax; ++tries) {
    auto opened = open_path(path);
    if (!opened) return std::unexpected(std::move(opened.error()));
    const int fd = opened->fd.get();
    if (may_wait) {
      const auto locked = try_lock(path, fd);
      if (!locked) return std::unexpected(locked.error());
      if (!*locked) return Candidate{.opened = std::move(*opened), .locked = false};
    } else if (auto locked = lock(path, fd); !locked) {
      return std::unexpected(std::move(locked.error()));
    }
    if (is_same_file(path, fd)) return Candidate{.opened = std::move(*opened), .locked = true};
  }
  return path_fail(ErrorCode::kUnavailable, path, "is being replaced all the time; give this daemon a path of its own");
}

// A device is the same as long as the node runs, and nothing that goes by this survives the node.
std::uint64_t identity_of(std::span<const struct stat> files) {
  std::vector<std::uint64_t> numbers;
  for (const struct stat& file : files)
    if (S_ISBLK(file.st_mode))
      numbers.insert(numbers.end(), {file.st_rdev, 0});
    else
      numbers.insert(numbers.end(), {file.st_dev, file.st_ino});
  return XXH3_64bits(numbers.data(), numbers.size() * sizeof(std::uint64_t)) | 1;
}

}  // namespace

Result<void> BlockFile::add(const std::string& path, bool may_wait) {
  auto found = open_locked(path, may_wait);
  if (!found) return std::unexpected(std::move(found.error()));
  struct stat facts{};
  if (fstat(found->opened.fd.get(), &facts) != 0) {
    return path_fail(ErrorCode::kInternal, path, std::strerror(errno), errno);
  }
  files_.push_back({.path = path,
                    .fd = std::move(found->opened.fd),
                    .made = found->opened.made,
                    .locked = found->locked,
                    .size_found = static_cast<std::uint64_t>(facts.st_size),
                    .is_device = S_ISBLK(facts.st_mode),
                    .claim = {}});
  return found->locked ? own(files_.back()) : Result<void>();
}

// One that is locked.
Result<void> BlockFile::own(File& file) {
  if (auto marked = own_file(file.path, file.fd.get()); !marked) return marked;
  auto reserved = file.is_device ? own_device(file) : reserve_file(file.path, file.fd.get(), file_bytes_);
  if (!reserved) return reserved;
  const auto alignment = alignment_of(file.path, file.fd.get());
  if (!alignment) return std::unexpected(alignment.error());
  alignment_ = std::max(alignment_, *alignment);
  file.owned = true;
  return {};
}

// One with a header of ours.
Result<void> BlockFile::own_device(File& file) const {
  auto claim = claim_device(file.path);
  if (!claim) return std::unexpected(std::move(claim.error()));
  const std::uint64_t bytes = device_bytes(file.fd.get());
  if (bytes < kDeviceHeaderBytes + file_bytes_)
    return path_fail(ErrorCode::kResourceExhausted, file.path,
                     fmt::format("the device has {}, of which a header takes {}, and {} are wanted; lower the capacity",
                                 format_bytes(bytes), format_bytes(kDeviceHeaderBytes), format_bytes(file_bytes_)));
  file.claim = std::move(*claim);
  return {};
}

const BlockFile::File* BlockFile::missing() const {
  const auto found = std::ranges::find(files_, false, &File::owned);
  return found == files_.end() ? nullptr : &*found;
}

bool BlockFile::owned() const { return missing() == nullptr; }

Result<bool> BlockFile::take() {
  for (File& file : files_) {
    if (file.owned) continue;
    if (!file.locked) {
      const auto locked = try_lock(file.path, file.fd.get());
      if (!locked || !*locked) return locked;
      file.locked = true;
    }
    if (auto owned = own(file); !owned) return std::unexpected(std::move(owned.error()));
  }
  return true;
}

bool BlockFile::in_place() const {
  return std::ranges::all_of(files_, [](const File& file) { return is_same_file(file.path, file.fd.get()); });
}

bool BlockFile::held_by_the_living() const {
  const File* file = missing();
  const auto held = file == nullptr ? std::nullopt : lock_holder(file->fd.get());
  return held && !held->name.empty();
}

std::string BlockFile::holder() const {
  const File* file = missing();
  const auto held = file == nullptr ? std::nullopt : lock_holder(file->fd.get());
  if (held && !held->name.empty()) return fmt::format("process {} ({})", held->pid, held->name);
  return "a daemon that has ended, or one in another container";
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
  file->stripes_ = rows * options.paths.size();
  file->file_bytes_ = rows * kStripeBytes;
  for (const std::string& path : options.paths) {
    if (auto added = file->add(path, options.may_wait); !added) return std::unexpected(std::move(added.error()));
  }
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

void BlockFile::keep() {
  TERRACE_CHECK(owned());
  kept_ = true;
  // A file that stays larger than it has to be does no harm.
  for (const File& file : files_)
    if (!file.is_device && file.size_found > file_bytes_)
      (void)!ftruncate(file.fd.get(), static_cast<off_t>(file_bytes_));
}

// Each file goes, or gets its size back, while its lock is held: the next owner may be waiting.
BlockFile::~BlockFile() {
  for (const File& file : files_) {
    if (!file.locked || file.is_device) continue;
    if (kept_ ? remove_on_close_ : file.made) {
      if (is_same_file(file.path, file.fd.get())) unlink(file.path.c_str());
    } else if (!kept_ && file.owned) {
      (void)!ftruncate(file.fd.get(), static_cast<off_t>(file.size_found));
    }
  }
}

std::vector<int> BlockFile::descriptors() const {
  std::vector<int> descriptors;
  descriptors.reserve(files_.size());
  for (const File& file : files_) descriptors.push_back(file.fd.get());
  return descriptors;
}

std::uint64_t BlockFile::identity() const {
  std::vector<struct stat> files(files_.size());
  for (std::size_t i = 0; i < files_.size(); ++i)
    if (fstat(files_[i].fd.get(), &files[i]) != 0) return 0;
  return terrace::tier::identity_of(files);
}

std::uint64_t BlockFile::identity_of(std::span<const std::string> paths) {
  std::vector<struct stat> files(paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i)
    if (stat(paths[i].c_str(), &files[i]) != 0) return 0;
  return terrace::tier::identity_of(files);
}

BlockFile::Piece BlockFile::locate(std::uint64_t offset, std::uint64_t bytes) const {
  TERRACE_CHECK(bytes > 0 && offset <= capacity_bytes() && bytes <= capacity_bytes() - offset);
  const std::uint64_t files = files_.size();
  const auto begin = [this](std::size_t file) { return files_[file].is_device ? kDeviceHeaderBytes : 0; };
  if (files == 1) return {.file = 0, .offset = begin(0) + offset, .bytes = bytes};
  const std::uint64_t stripe = offset / kStripeBytes;
  const std::uint64_t within = offset % kStripeBytes;
  const auto file = static_cast<std::size_t>(stripe % files);
  return {.file = file,
          .offset = begin(file) + stripe / files * kStripeBytes + within,
          .bytes = std::min(bytes, kStripeBytes - within)};
}

}  // namespace terrace::tier
