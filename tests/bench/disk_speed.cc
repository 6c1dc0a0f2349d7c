// SPDX-License-Identifier: Apache-2.0
#include "bench/disk_speed.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/fd.h"
#include "bench/contents.h"
#include "bench/leftovers.h"

namespace terrace::bench {
namespace {

constexpr unsigned kThreads = 8;
constexpr std::uint64_t kPiece = kMiB;

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{kPageBytes}); }
};

// Moves every piece of the file once; seconds, or the first error.
Result<double> move(int file, std::uint64_t bytes, bool writes) {
  std::atomic<std::uint64_t> next = 0;
  std::vector<Result<void>> results(kThreads);
  const auto begin = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        const std::unique_ptr<std::byte, AlignedDelete> memory(
            static_cast<std::byte*>(::operator new(kPiece, std::align_val_t{kPageBytes})));
        const std::span<std::byte> piece(memory.get(), kPiece);
        for (std::uint64_t at = 0; results[i] && (at = next.fetch_add(kPiece)) < bytes;) {
          const auto offset = static_cast<off_t>(at);
          if (writes) fill(piece, at, 1);
          const ssize_t moved =
              writes ? ::pwrite(file, piece.data(), kPiece, offset) : ::pread(file, piece.data(), kPiece, offset);
          if (moved != static_cast<ssize_t>(kPiece))
            results[i] = fail(ErrorCode::kUnavailable, fmt::format("the disk: {}", std::strerror(errno)), errno);
          else if (!writes)
            results[i] = check(piece, at, 1);
        }
      });
  }
  for (const Result<void>& result : results)
    if (!result) return std::unexpected(result.error());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Result<DiskSpeed> measure_disk(const std::filesystem::path& folder, std::uint64_t bytes) {
  auto made = Folder::make(folder);
  if (!made) return std::unexpected(made.error());
  const Fd file(::open((made->path() / "speed").c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  if (!file) return fail(ErrorCode::kUnavailable, fmt::format("no O_DIRECT file in {}", folder.string()), errno);
  if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("no room for {} in {}", format_bytes(bytes), folder.string()), error);
  if (const auto warmed = move(file.get(), bytes, true); !warmed) return std::unexpected(warmed.error());
  const auto written = move(file.get(), bytes, true);
  if (!written) return std::unexpected(written.error());
  const auto read = move(file.get(), bytes, false);
  if (!read) return std::unexpected(read.error());
  const auto size = static_cast<double>(bytes);
  return DiskSpeed{.read = size / *read, .write = size / *written};
}

}  // namespace terrace::bench
