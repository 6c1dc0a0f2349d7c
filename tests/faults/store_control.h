// SPDX-License-Identifier: Apache-2.0
// How a test speaks to store_child: one command and one answer over a socket in its folder.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace terrace::faults {

inline constexpr std::size_t kControlBytesMax = 65536;

// Listens on `folder`/control; replaces what a former one left. -1: it could not.
int listen_for_commands(const std::filesystem::path& folder);

// The child's answer to `command`; none where none listens, or it ended before it answered.
std::optional<std::string> ask(const std::filesystem::path& folder, const std::string& command);

}  // namespace terrace::faults
