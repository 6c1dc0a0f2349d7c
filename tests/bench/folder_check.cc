// SPDX-License-Identifier: Apache-2.0
#include "bench/folder_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/fd.h"
#include "bench/leftovers.h"

namespace terrace::bench {

std::string cannot_take(const std::filesystem::path& folder, std::uint64_t bytes) {
  std::error_code error;
  const auto room = std::filesystem::space(folder, error).available;
  if (error) return fmt::format("{} is no folder to measure in: {}", folder.string(), error.message());
  if (bytes <= room) return {};
  return fmt::format("up to {} are taken in {}, which has room for {}: free some, or name another folder with --dir",
                     format_bytes(bytes), folder.string(), format_bytes(room));
}

std::string cannot_hold_block_files(const std::filesystem::path& folder) {
  const auto made = Folder::make(folder);
  if (!made) return fmt::format("{}; name another with --dir", made.error().message);
  const Fd file(::open((made->path() / "block").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  const char* const missing = !file                                                                ? "O_DIRECT"
                              : ::fallocate(file.get(), 0, 0, static_cast<off_t>(kPageBytes)) != 0 ? "fallocate"
                                                                                                   : nullptr;
  if (missing == nullptr) return {};
  const int error = errno;
  return fmt::format("a block file needs {}, which fails in {} ({}): name a folder on ext4 or xfs with --dir", missing,
                     folder.string(), std::strerror(error));
}

}  // namespace terrace::bench
