// SPDX-License-Identifier: Apache-2.0
// Marks a file as a block tier's own, so that a mistyped path never costs anyone their file.
#pragma once

#include <string>

#include "terrace/error.h"

namespace terrace::tier {

// Marks a regular file that is empty, or marked already, by the extended attribute "user.terrace.block". Any other file
// with content is kFailedPrecondition, and stays as it is. On file systems without extended attributes only empty files
// are taken.
Result<void> own_file(const std::string& path, int fd);

}  // namespace terrace::tier
