// SPDX-License-Identifier: Apache-2.0
#include "tier/block/probe.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/bytes.h"

namespace terrace::tier {
namespace {

constexpr std::array<std::pair<std::uint32_t, const char*>, 12> kFileSystems = {{
    {EXT4_SUPER_MAGIC, "ext4"},
    {0x58465342, "xfs"},
    {BTRFS_SUPER_MAGIC, "btrfs"},
    {TMPFS_MAGIC, "tmpfs"},
    {RAMFS_MAGIC, "ramfs"},
    {OVERLAYFS_SUPER_MAGIC, "overlayfs"},
    {NFS_SUPER_MAGIC, "nfs"},
    {0x2FC12FC1, "zfs"},
    {FUSE_SUPER_MAGIC, "fuse"},
    {V9FS_MAGIC, "9p"},
    {F2FS_SUPER_MAGIC, "f2fs"},
    {0x00C36400, "ceph"},
}};

std::string process_name(pid_t pid) {
  std::array<char, 64> name{};
  if (std::FILE* file = std::fopen(fmt::format("/proc/{}/comm", pid).c_str(), "re")) {
    if (std::fgets(name.data(), name.size(), file) == nullptr) name[0] = '\0';
    std::fclose(file);
  }
  name[std::strcspn(name.data(), "\n")] = '\0';
  return name.data();
}

std::unexpected<Error> no_direct_io(int fd, int error) {
  return fail(
      ErrorCode::kFailedPrecondition,
      fmt::format("its file system ({}) does no direct I/O (O_DIRECT); use a file on ext4, xfs or another local "
                  "file system",
                  file_system_name(fd)),
      error);
}

}  // namespace

std::string file_system_name(int fd) {
  struct statfs facts{};
  if (fstatfs(fd, &facts) != 0) return "unknown";
  const auto magic = static_cast<std::uint32_t>(facts.f_type);
  for (const auto& [known, name] : kFileSystems) {
    if (known == magic) return name;
  }
  return fmt::format("type {:#x}", magic);
}

std::uint64_t file_system_free_bytes(int fd) {
  struct statvfs facts{};
  if (fstatvfs(fd, &facts) != 0) return 0;
  return std::uint64_t{facts.f_bavail} * facts.f_frsize;
}

std::optional<LockHolder> lock_holder(int fd) {
  struct stat wanted{};
  if (fstat(fd, &wanted) != 0) return std::nullopt;
  std::FILE* file = std::fopen("/proc/locks", "re");
  if (file == nullptr) return std::nullopt;
  std::optional<LockHolder> holder;
  std::array<char, 256> line{};
  while (!holder && std::fgets(line.data(), line.size(), file) != nullptr) {
    // "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF"; a waiter's line has "->" before the kind.
    int pid = 0;
    unsigned device_major = 0;
    unsigned device_minor = 0;
    unsigned long inode = 0;  // NOLINT(google-runtime-int): scanf's type
    const int read = std::sscanf(line.data(), "%*d: FLOCK %*s %*s %d %x:%x:%lu", &pid, &device_major,  // NOLINT
                                 &device_minor, &inode);
    if (read == 4 && inode == wanted.st_ino && device_major == major(wanted.st_dev) &&
        device_minor == minor(wanted.st_dev)) {
      holder = LockHolder{.pid = pid, .name = process_name(pid)};
    }
  }
  std::fclose(file);
  return holder;
}

Result<std::uint64_t> direct_alignment(int fd) {
  struct statx facts{};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &facts) == 0 && (facts.stx_mask & STATX_DIOALIGN) != 0) {
    if (facts.stx_dio_offset_align == 0) return no_direct_io(fd, 0);
    return std::max<std::uint64_t>(facts.stx_dio_offset_align, facts.stx_dio_mem_align);
  }
  alignas(kPageBytes) std::array<std::byte, kPageBytes> page{};
  for (const std::uint64_t alignment : {std::uint64_t{512}, kPageBytes}) {
    const auto got = pread(fd, page.data(), alignment, static_cast<off_t>(alignment % kPageBytes));
    if (got == static_cast<ssize_t>(alignment)) return alignment;
    if (got < 0 && errno != EINVAL) {
      const int error = errno;
      return fail(ErrorCode::kInternal, fmt::format("reading it: {}", std::strerror(error)), error);
    }
  }
  return no_direct_io(fd, EINVAL);
}

}  // namespace terrace::tier
