// SPDX-License-Identifier: Apache-2.0
#include "bench/disk_speed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "bench/contents.h"

namespace terrace::bench {
namespace {

constexpr unsigned kThreads = 8;
constexpr std::uint64_t kPiece = kMiB;

// Moves every piece of the file once; bytes a second, or the first error.
Result<double> move(int file, std::span<std::byte> memory, bool writes) {
  std::atomic<std::uint64_t> next = 0;
  std::vector<Result<void>> results(kThreads);
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        for (std::uint64_t at = 0; results[i] && (at = next.fetch_add(kPiece)) < memory.size();) {
          const auto offset = static_cast<off_t>(at);
          const auto piece = memory.subspan(at, kPiece);
          const ssize_t moved =
              writes ? ::pwrite(file, piece.data(), kPiece, offset) : ::pread(file, piece.data(), kPiece, offset);
          if (moved != static_cast<ssize_t>(kPiece))
            results[i] = fail(ErrorCode::kUnavailable, fmt::format("the disk: {}", std::strerror(errno)), errno);
        }
      });
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (const Result<void>& result : results)
    if (!result) return std::unexpected(result.error());
  return static_cast<double>(memory.size()) / took.count();
}

}  // namespace

Result<DiskReference> DiskReference::make(const std::filesystem::path& folder, std::uint64_t bytes) {
  auto made = Folder::make(folder);
  if (!made) return std::unexpected(made.error());
  Fd file(::open((made->path() / "speed").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  if (!file) return fail(ErrorCode::kUnavailable, fmt::format("no O_DIRECT file in {}", folder.string()), errno);
  if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("no room for {} in {}", format_bytes(bytes), folder.string()), error);
  auto memory = ReferenceMemory::map(bytes);
  if (!memory) return std::unexpected(memory.error());
  DiskReference reference(std::move(*made), std::move(file), std::move(*memory));
  if (const auto warmed = reference.measure(); !warmed) return std::unexpected(warmed.error());
  return reference;
}

Result<DiskSpeed> DiskReference::measure() {
  fill(memory_.bytes(), 0, ++version_);
  const auto written = move(file_.get(), memory_.bytes(), true);
  if (!written) return std::unexpected(written.error());
  std::ranges::fill(memory_.bytes(), std::byte{0});
  const auto read = move(file_.get(), memory_.bytes(), false);
  if (!read) return std::unexpected(read.error());
  if (const auto right = check(memory_.bytes(), 0, version_); !right) return std::unexpected(right.error());
  // What follows is to find the disk at rest, with nothing in a cache of its own that it still has to write.
  if (::fdatasync(file_.get()) != 0) return fail(ErrorCode::kUnavailable, "the disk cannot be synced", errno);
  return DiskSpeed{.read = *read, .write = *written};
}

}  // namespace terrace::bench
