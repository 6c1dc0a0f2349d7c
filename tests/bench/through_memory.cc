// SPDX-License-Identifier: Apache-2.0
#include "bench/through_memory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "bench/bench.h"
#include "bench/contents.h"
#include "mover/ring.h"

namespace terrace::bench {
namespace {

constexpr std::uint64_t kMemoryBytesMax = 512 * kMiB;
constexpr std::uint64_t kSliceBytes = 64 * kMiB;  // of memory, registered as one buffer
constexpr std::uint64_t kSeed = 1979;

}  // namespace

// One run: every request that completes is followed by another.
class ThroughMemory::Loop {
 public:
  static Result<double> run(ThroughMemory& of) {
    auto ring = mover::Ring::create({.io_max = of.job_.depth * of.job_.threads});
    if (!ring) return std::unexpected(ring.error());
    Loop loop(of, **ring);
    loop.register_all();
    const auto begin = std::chrono::steady_clock::now();
    for (Request& request : loop.requests_) loop.begin(request);
    while ((*ring)->io_in_flight() > 0)
      if (const auto ran = (*ring)->run_once(Duration::max()); !ran) return std::unexpected(ran.error());
    if (loop.failed_) return std::unexpected(*loop.failed_);
    return static_cast<double>(loop.begun_ * of.job_.block_bytes) / static_cast<double>(kGiB) / seconds_since(begin);
  }

 private:
  struct Request final : mover::Completion {
    void completed(int result, bool /*more*/) override { loop->ended(*this, result); }
    Loop* loop = nullptr;
  };

  Loop(ThroughMemory& of, mover::Ring& ring) : of_(of), ring_(ring), requests_(of.job_.depth * of.job_.threads) {
    for (Request& request : requests_) request.loop = this;
  }

  void register_all() {
    const int descriptor = of_.file_.get();
    ring_.set_files({&descriptor, 1});
    const std::span<std::byte> memory = of_.memory_.bytes();
    const std::uint64_t slices = (memory.size() + kSliceBytes - 1) / kSliceBytes;
    if (kSliceBytes % of_.job_.block_bytes != 0 || !ring_.reserve_buffers(static_cast<unsigned>(slices))) return;
    for (std::uint64_t begin = 0; begin < memory.size(); begin += kSliceBytes, ++registered_) {
      const auto slice = memory.subspan(begin, std::min(kSliceBytes, memory.size() - begin));
      if (!ring_.set_buffer(static_cast<int>(registered_), slice)) return;
    }
  }

  int slot_of(std::uint64_t offset) const {
    return offset / kSliceBytes < registered_ ? static_cast<int>(offset / kSliceBytes) : mover::Ring::kUnregistered;
  }

  std::uint64_t file_offset(std::uint64_t number) {
    const std::uint64_t blocks = of_.part_bytes_ / of_.job_.block_bytes;
    return (of_.job_.pattern == Pattern::kRandomRead ? random_() : number) % blocks * of_.job_.block_bytes;
  }

  void begin(Request& request) {
    const std::uint64_t block = of_.job_.block_bytes;
    if (failed_ || begun_ == of_.job_.bytes / block) return;
    const std::uint64_t number = begun_++;
    const std::uint64_t at = number * block % of_.memory_bytes();
    const auto memory = of_.memory_.bytes().subspan(at, block);
    const bool writes = of_.job_.pattern == Pattern::kWrite || (of_.job_.pattern == Pattern::kMixed && number % 2 == 1);
    if (writes)
      ring_.write(0, memory, file_offset(number), request, slot_of(at));
    else
      ring_.read(0, memory, file_offset(number), request, slot_of(at));
  }

  void ended(Request& request, int result) {
    if (result == static_cast<int>(of_.job_.block_bytes)) return begin(request);
    failed_ = Error{ErrorCode::kUnavailable, fmt::format("the disk: {}", std::strerror(result < 0 ? -result : EIO)),
                    result < 0 ? -result : EIO};
  }

  ThroughMemory& of_;
  mover::Ring& ring_;
  std::vector<Request> requests_;
  std::uint64_t registered_ = 0;  // slices
  std::uint64_t begun_ = 0;
  std::mt19937_64 random_{kSeed};
  std::optional<Error> failed_;
};

Result<ThroughMemory> ThroughMemory::make(const std::filesystem::path& file, const FioJob& job) {
  auto memory = ReferenceMemory::map(align_down(std::min(job.bytes, kMemoryBytesMax), job.block_bytes));
  if (!memory) return std::unexpected(memory.error());
  ThroughMemory made(job, std::move(*memory));
  fill(made.memory_.bytes(), 0, 1);
  made.file_ = Fd(::open(file.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!made.file_)
    return fail(ErrorCode::kUnavailable, fmt::format("{}: {}", file.string(), std::strerror(errno)), errno);
  made.part_bytes_ = std::min<std::uint64_t>(job.bytes, std::filesystem::file_size(file));
  return made;
}

Result<double> ThroughMemory::run() { return Loop::run(*this); }

}  // namespace terrace::bench
