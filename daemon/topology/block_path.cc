// SPDX-License-Identifier: Apache-2.0
#include "topology/block_path.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/nameless_file.h"
#include "topology/mounts.h"
#include "topology/text_file.h"

namespace terrace::topology {
namespace {

namespace fs = std::filesystem;

// Deeper stacks of volumes than this are taken for a loop.
constexpr int kVolumeDepthMax = 8;

std::string folder_of(const std::string& path) { return fs::path(path).parent_path(); }

Error failed(const std::string& path, std::string_view what, int error) {
  const ErrorCode code = error == ENOENT || error == ENOTDIR                   ? ErrorCode::kNotFound
                         : error == EACCES || error == EROFS || error == EPERM ? ErrorCode::kPermissionDenied
                                                                               : ErrorCode::kFailedPrecondition;
  return {code, fmt::format("{}: {}: {}", path, what, std::strerror(error)), error};
}

// The node that a device's folder in /sys, or one above it, names; -1 is the kernel's "none".
std::optional<unsigned> node_above(fs::path folder) {
  while (folder.has_relative_path()) {
    if (const auto node = read_number(folder / "numa_node")) return static_cast<unsigned>(*node);
    folder = folder.parent_path();
  }
  return std::nullopt;
}

void collect_disks(const fs::path& link, int depth, std::vector<BlockDevice>& disks) {
  std::error_code error;
  fs::path folder = fs::canonical(link, error);
  if (error || depth > kVolumeDepthMax) return;
  if (fs::exists(folder / "partition", error)) folder = folder.parent_path();
  bool is_volume = false;
  for (const fs::directory_entry& slave : fs::directory_iterator(folder / "slaves", error)) {
    is_volume = true;
    collect_disks(slave.path(), depth + 1, disks);
  }
  const std::string name = folder.filename();
  if (is_volume || std::ranges::find(disks, name, &BlockDevice::name) != disks.end()) return;
  disks.push_back({name, node_above(folder)});
}

// The mount that holds device `major`:`minor`; empty: none. The last one wins, as the last mount does.
Mount mount_of(const std::string& root, unsigned major, unsigned minor) {
  Mount found;
  for (Mount& mount : mounts(root))
    if (mount.major == major && mount.minor == minor) found = std::move(mount);
  return found;
}

// Some file systems (btrfs) have a device number of their own; then the mount's source is the disk.
std::vector<BlockDevice> disks_of(dev_t device, const Mount& mount, const std::string& root) {
  std::vector<BlockDevice> disks = disks_under(major(device), minor(device), root);
  struct stat source{};
  if (disks.empty() && mount.source.starts_with("/dev/") && ::stat(mount.source.c_str(), &source) == 0 &&
      S_ISBLK(source.st_mode)) {
    disks = disks_under(major(source.st_rdev), minor(source.st_rdev), root);
  }
  return disks;
}

// A file to try on: the one at `path` for reading, or else one in its folder that vanishes with the descriptor.
struct Trial {
  Fd fd;
  bool writable = false;
};

Result<Trial> open_trial(const std::string& path, const std::string& folder) {
  Fd existing(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (existing) return Trial{std::move(existing), false};
  std::expected<Fd, int> nameless = nameless_file(folder);
  if (!nameless) return std::unexpected(failed(folder, "no file can be made here", nameless.error()));
  return Trial{std::move(*nameless), true};
}

// Opens the trial again with O_DIRECT and moves one page, as the block tier will.
DirectIo probe_direct_io(const Trial& trial) {
  DirectIo found;
  found.source = "probe";
  const std::string self = fmt::format("/proc/self/fd/{}", trial.fd.get());
  const Fd direct(::open(self.c_str(), (trial.writable ? O_RDWR : O_RDONLY) | O_DIRECT | O_CLOEXEC));
  if (!direct) {
    found.why_not = std::strerror(errno);
    return found;
  }
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(kPageBytes, kPageBytes), &std::free);
  std::memset(page.get(), 0, kPageBytes);
  if ((trial.writable && ::pwrite(direct.get(), page.get(), kPageBytes, 0) != static_cast<ssize_t>(kPageBytes)) ||
      ::pread(direct.get(), page.get(), kPageBytes, 0) < 0) {
    found.why_not = std::strerror(errno);
    return found;
  }
  found.supported = true;
  found.memory_alignment_bytes = found.offset_alignment_bytes = static_cast<std::uint32_t>(kPageBytes);
  return found;
}

// Whether a daemon holds the file: then its disk may be one that does not answer, and an attempt would wait for it.
bool is_held(const Trial& trial) {
  if (::flock(trial.fd.get(), LOCK_SH | LOCK_NB) != 0) return errno == EWOULDBLOCK;
  ::flock(trial.fd.get(), LOCK_UN);
  return false;
}

DirectIo direct_io(const Trial& trial) {
#ifdef STATX_DIOALIGN
  struct statx status{};
  if (::statx(trial.fd.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    DirectIo found{status.stx_dio_offset_align != 0, status.stx_dio_mem_align, status.stx_dio_offset_align, "statx",
                   ""};
    if (!found.supported) found.why_not = "the file system says that it has none";
    return found;
  }
#endif
  constexpr auto kPage = static_cast<std::uint32_t>(kPageBytes);
  if (is_held(trial)) return {true, kPage, kPage, "holder", ""};
  return probe_direct_io(trial);
}

Result<BlockRoom> device_room(const std::string& path, dev_t number) {
  const Fd device(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::uint64_t bytes = 0;
  if (!device || ::ioctl(device.get(), BLKGETSIZE64, &bytes) != 0)
    return std::unexpected(failed(path, "its size is unknown", errno));
  return BlockRoom{.file_system_id = number, .free_bytes = bytes, .held_bytes = 0};
}

}  // namespace

std::vector<BlockDevice> disks_under(unsigned major, unsigned minor, const std::string& root) {
  std::vector<BlockDevice> disks;
  collect_disks(fmt::format("{}/sys/dev/block/{}:{}", root, major, minor), 0, disks);
  return disks;
}

Result<BlockRoom> block_room(const std::string& path) {
  struct stat status{};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISBLK(status.st_mode)) return device_room(path, status.st_rdev);
  if (exists && !S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("{}: is not a regular file; name one, or a path where the daemon can make one, or a block "
                            "device",
                            path));
  }
  BlockRoom room;
  if (exists) room.held_bytes = static_cast<std::uint64_t>(status.st_blocks) * 512;
  const std::string folder = folder_of(path);
  if (!exists && ::stat(folder.c_str(), &status) != 0) {
    return std::unexpected(failed(folder, "the folder of a block tier's file must be there", errno));
  }
  struct statvfs system{};
  if (::statvfs(folder.c_str(), &system) != 0) return std::unexpected(failed(folder, "its room is unknown", errno));
  room.file_system_id = status.st_dev;
  room.free_bytes = static_cast<std::uint64_t>(system.f_bavail) * system.f_frsize;
  return room;
}

Result<BlockPath> inspect_block_path(const std::string& path, const Sources& sources) {
  const Result<BlockRoom> room = block_room(path);
  if (!room) return std::unexpected(room.error());
  BlockPath found;
  found.path = path;
  found.file_system_id = room->file_system_id;
  found.room_bytes = room->free_bytes + room->held_bytes;
  const dev_t device = room->file_system_id;
  const Mount mount = mount_of(sources.root, major(device), minor(device));
  found.file_system = mount.file_system;
  struct stat status{};
  if (found.file_system.empty() && ::stat(path.c_str(), &status) == 0 && S_ISBLK(status.st_mode))
    found.file_system = "a block device";
  for (const BlockDevice& disk : disks_of(device, mount, sources.root)) {
    if (found.devices.empty()) {
      found.numa_node = disk.numa_node;
    } else if (found.numa_node != disk.numa_node) {
      found.numa_node.reset();
    }
    found.devices.push_back(disk.name);
  }
  const Result<Trial> trial = open_trial(path, folder_of(path));
  if (!trial) return std::unexpected(trial.error());
  found.direct_io = direct_io(*trial);
  return found;
}

}  // namespace terrace::topology
