// SPDX-License-Identifier: Apache-2.0
// A file to try something on, which leaves nothing behind.
#pragma once

#include <expected>
#include <string>

#include "base/fd.h"

namespace terrace {

// A new file in `folder` for reading and writing, of this user alone and without a name: it is gone with the
// descriptor. `flags` as open(2) has them, such as O_DIRECT. errno where none can be made there.
std::expected<Fd, int> nameless_file(const std::string& folder, int flags = 0);

}  // namespace terrace
