// SPDX-License-Identifier: Apache-2.0
// A block device (a drive, a partition, a volume) as a block tier's storage: only one whose first mebibyte is a header
// of ours, which nothing but format_device() writes. docs/reference/formats-block.md
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/fd.h"
#include "terrace/error.h"

namespace terrace::tier {

// What the header takes; tensors' bytes lie behind it.
inline constexpr std::uint64_t kDeviceHeaderBytes = kMiB;

// Whether the path leads to a block device.
bool is_block_device(const std::string& path);

// Bytes of an open one; 0 if that is unknown.
std::uint64_t device_bytes(int fd);

// Of an open one. kFailedPrecondition: there is no header of ours, or it is not as it was written, as where a file
// system was made there since; the message says what is there, and what would do.
Result<void> check_device_header(const std::string& path, int fd);

// Keeps others from mounting it, or taking it exclusively otherwise, as long as the descriptor is open.
// kFailedPrecondition: it is mounted or in use already.
Result<Fd> claim_device(const std::string& path);

// Makes it a block tier's; whatever lay there is of no use any more. Refused is what may be somebody's
// (kFailedPrecondition): a path that is no block device; a device that is mounted, in use, or held by a daemon, or
// whose first or last mebibyte has anything at all in it, such as a partition table or a file system's signature. One
// that has a header of ours already stays as it is. Others: kPermissionDenied, kInternal, with system_error.
Result<void> format_device(const std::string& path);

}  // namespace terrace::tier
