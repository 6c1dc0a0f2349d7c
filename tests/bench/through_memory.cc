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
#include <vector>

#include "base/bytes.h"
#include "bench/bench.h"
#include "bench/contents.h"

namespace terrace::bench {
namespace {

constexpr std::uint64_t kMemoryBytesMax = 512 * kMiB;
constexpr std::uint64_t kSliceBytes = 64 * kMiB;  // of memory, registered as one buffer
constexpr std::uint64_t kSeed = 1979;

}  // namespace

// One run: every request that completes is followed by another.
class ThroughMemory::Loop {
 public:
  explicit Loop(ThroughMemory& of) : of_(of), requests_(of.job_.depth * of.job_.threads) {
    for (Request& request : requests_) request.loop = this;
  }

  Result<void> run() {
    for (Request& request : requests_) begin(request);
    while (of_.ring_->io_in_flight() > 0)
      if (const auto ran = of_.ring_->run_once(Duration::max()); !ran) return std::unexpected(ran.error());
    if (failed_) return std::unexpected(*failed_);
    return {};
  }

 private:
  struct Request final : mover::Completion {
    void completed(int result, bool /*more*/) override { loop->ended(*this, result); }
    Loop* loop = nullptr;
  };

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
      of_.ring_->write(0, memory, file_offset(number), request, of_.slot_of(at));
    else
      of_.ring_->read(0, memory, file_offset(number), request, of_.slot_of(at));
  }

  void ended(Request& request, int result) {
    if (result == static_cast<int>(of_.job_.block_bytes)) return begin(request);
    failed_ = Error{ErrorCode::kUnavailable, fmt::format("the disk: {}", std::strerror(result < 0 ? -result : EIO)),
                    result < 0 ? -result : EIO};
  }

  ThroughMemory& of_;
  std::vector<Request> requests_;
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
  auto ring = mover::Ring::create({.io_max = job.depth * job.threads});
  if (!ring) return std::unexpected(ring.error());
  made.ring_ = std::move(*ring);
  const int descriptor = made.file_.get();
  made.ring_->set_files({&descriptor, 1});
  const std::uint64_t slices = (made.memory_bytes() + kSliceBytes - 1) / kSliceBytes;
  made.registered_ = kSliceBytes % job.block_bytes == 0 && made.ring_->reserve_buffers(static_cast<unsigned>(slices));
  for (std::uint64_t slice = 0; made.registered_ && slice < slices; ++slice) {
    const std::uint64_t begin = slice * kSliceBytes;
    const auto part = made.memory_.bytes().subspan(begin, std::min(kSliceBytes, made.memory_bytes() - begin));
    made.registered_ = made.ring_->set_buffer(static_cast<int>(slice), part);
  }
  return made;
}

int ThroughMemory::slot_of(std::uint64_t offset) const {
  return registered_ ? static_cast<int>(offset / kSliceBytes) : mover::Ring::kUnregistered;
}

Result<double> ThroughMemory::run() {
  const auto begin = std::chrono::steady_clock::now();
  if (const auto ran = Loop(*this).run(); !ran) return std::unexpected(ran.error());
  return static_cast<double>(job_.bytes / job_.block_bytes * job_.block_bytes) / static_cast<double>(kGiB) /
         seconds_since(begin);
}

}  // namespace terrace::bench
