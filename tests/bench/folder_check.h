// SPDX-License-Identifier: Apache-2.0
// Whether there can be block files in a folder, before anything is measured.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace terrace::bench {

// Why so many bytes find no room in the folder, with what to do; empty: they do.
std::string cannot_take(const std::filesystem::path& folder, std::uint64_t bytes);

// Why the folder can hold no block file of a daemon's (nothing can be made there, or its file system has no O_DIRECT or
// no fallocate), with what to do; empty: it can.
std::string cannot_hold_block_files(const std::filesystem::path& folder);

}  // namespace terrace::bench
