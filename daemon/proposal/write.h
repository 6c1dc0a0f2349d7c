// SPDX-License-Identifier: Apache-2.0
// A proposal as the configuration's text, and the text as a file.
#pragma once

#include <string>

#include "proposal/proposal.h"
#include "terrace/error.h"

namespace terrace::proposal {

// TOML that `terraced --config` takes, with a comment for each value.
std::string to_toml(const Proposal& proposal);

// Puts the text into a file at `path`, whole or not at all, readable by all. AlreadyExists if something is there and
// `replaces` is false; FailedPrecondition if it is true and what is there is no regular file, as a folder, a link or a
// device; else PermissionDenied, NotFound or Internal, with system_error.
Result<void> write_file(const std::string& path, const std::string& text, bool replaces);

}  // namespace terrace::proposal
