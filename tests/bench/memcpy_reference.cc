// SPDX-License-Identifier: Apache-2.0
#include "bench/memcpy_reference.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <thread>

#include "base/bytes.h"
#include "bench/contents.h"
#include "bench/counters.h"

namespace terrace::bench {
namespace {

// Runs it on so many threads, each with its part of the bytes, in whole pages. The CPU time of all.
double share(std::uint64_t bytes, unsigned threads,
             const std::function<void(std::uint64_t begin, std::uint64_t end)>& part) {
  std::vector<double> cpu_seconds(threads);
  {
    std::vector<std::jthread> running;
    const std::uint64_t each = align_up((bytes + threads - 1) / threads, kPageBytes);
    for (unsigned i = 0; i < threads; ++i)
      running.emplace_back([&, i] {
        part(std::min(bytes, i * each), std::min(bytes, (i + 1) * each));
        cpu_seconds[i] = static_cast<double>(counters_of_this_thread().cpu_ns) / 1e9;
      });
  }
  double sum = 0;
  for (const double seconds : cpu_seconds) sum += seconds;
  return sum;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::unique_ptr<std::byte, Unmap> map(std::uint64_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return {memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory), Unmap{bytes}};
}

}  // namespace

void Unmap::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

Result<MemcpyReference> MemcpyReference::make(std::uint64_t bytes) {
  MemcpyReference made;
  made.bytes_ = bytes;
  made.from_ = map(bytes);
  made.to_ = map(bytes);
  if (!made.from_ || !made.to_)
    return fail(ErrorCode::kResourceExhausted, fmt::format("no memory for two buffers of {}", format_bytes(bytes)),
                errno);
  std::memset(made.to_.get(), 1, bytes);
  return made;
}

Result<MemcpyReference::Copied> MemcpyReference::copy(unsigned threads) {
  fill({from_.get(), bytes_}, 0, ++version_);
  const auto begin = std::chrono::steady_clock::now();
  Copied copied;
  copied.cpu_seconds = share(bytes_, threads, [&](std::uint64_t at, std::uint64_t end) {
    for (; at < end; at += std::min(kMiB, end - at))
      std::memcpy(to_.get() + at, from_.get() + at, std::min(kMiB, end - at));
  });
  copied.seconds = seconds_since(begin);
  if (const auto right = check({to_.get(), bytes_}, 0, version_); !right) return std::unexpected(right.error());
  return copied;
}

Result<double> seconds_to_touch(std::uint64_t bytes, unsigned threads) {
  const auto begin = std::chrono::steady_clock::now();
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return fail(ErrorCode::kResourceExhausted, fmt::format("no memory to touch {}", format_bytes(bytes)), errno);
  share(bytes, threads, [&](std::uint64_t at, std::uint64_t end) {
    for (; at < end; at += kPageBytes) static_cast<volatile std::byte*>(memory)[at] = std::byte{1};
  });
  const double seconds = seconds_since(begin);
  ::munmap(memory, bytes);
  return seconds;
}

unsigned daemon_copiers() { return std::max(1U, std::thread::hardware_concurrency() / 2); }

}  // namespace terrace::bench
