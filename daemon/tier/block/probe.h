// SPDX-License-Identifier: Apache-2.0
// What the system says of an open file: its file system, who holds its lock, what direct I/O must be aligned to.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "terrace/error.h"

namespace terrace::tier {

// "ext4", "tmpfs"...; the magic number in hexadecimal where it is none that we know.
std::string file_system_name(int fd);

// Bytes that an unprivileged process may still take of its file system.
std::uint64_t file_system_free_bytes(int fd);

struct LockHolder {
  pid_t pid = 0;     // of the process that took the lock; it may be dead, and the kernel still finishing its I/O
  std::string name;  // empty: there is no such process
};
// Who holds the flock on this file, by /proc/locks; nothing where that does not tell.
std::optional<LockHolder> lock_holder(int fd);

// What offsets, lengths and addresses of direct I/O must be multiples of: STATX_DIOALIGN (Linux 6.1), else found by
// trying to read (the file must hold 4 KiB). kFailedPrecondition where there is no direct I/O; the message leaves the
// path to the caller.
Result<std::uint64_t> direct_alignment(int fd);

}  // namespace terrace::tier
