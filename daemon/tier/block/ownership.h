// SPDX-License-Identifier: Apache-2.0
// Marks a file as a block tier's own, so that a mistyped path never costs anyone their file.
#pragma once

#include <string>

#include "terrace/error.h"

namespace terrace::tier {

// Of a block device looks for a header of ours, and changes nothing: errors as check_device_header().
// Marks a regular file that is empty, or marked already, by the extended attribute "user.terrace.block". Any other file
// with content is kFailedPrecondition, and stays as it is. On file systems without extended attributes only empty files
// are taken.
Result<void> own_file(const std::string& path, int fd);

// What would keep a block tier from the file at `path`, if there is one: it is not this user's to write
// (kPermissionDenied), or own_file() would not take it, or a device is mounted. Changes nothing, and reads nothing from
// a device that a daemon holds.
Result<void> check_file(const std::string& path);

}  // namespace terrace::tier
