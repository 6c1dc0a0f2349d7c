// SPDX-License-Identifier: Apache-2.0
#include "bench/memcpy_reference.h"

#include <fmt/format.h>
#include <linux/mman.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "bench/contents.h"
#include "bench/counters.h"
#include "mover/workers.h"
#include "topology/machine.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; glibc's name for it came later
#endif

namespace terrace::bench {
namespace {

constexpr std::uint64_t kHugePageBytes = 2 * kMiB;
constexpr std::uint64_t kPieceBytes = 32 * kMiB;  // of one kind of pages

unsigned processors() { return std::max(1U, std::thread::hardware_concurrency()); }
// A daemon's, where its configuration says nothing of it.
unsigned copiers() { return std::clamp(processors() / 2, 1U, mover::Workers::kCopiersMax); }

// Processors of each NUMA node that has any.
std::vector<std::vector<unsigned>> find_nodes() {
  std::vector<std::vector<unsigned>> nodes;
  if (const auto machine = topology::discover())
    for (const topology::NumaNode& node : machine->numa_nodes)
      if (!node.cpu_less()) nodes.push_back(node.cpus);
  return nodes;
}

// Where there are several nodes, they have the threads in turn, as the daemon's copiers. What a thread touches first
// is then on its own node.
void bind_to_node(unsigned thread) {
  static const std::vector<std::vector<unsigned>> nodes = find_nodes();
  if (nodes.size() < 2) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const unsigned processor : nodes[thread % nodes.size()])
    if (processor < CPU_SETSIZE) CPU_SET(processor, &set);
  ::sched_setaffinity(0, sizeof(set), &set);  // a wish
}

// What threads did together.
struct Took {
  double seconds = 0;
  double cpu_seconds = 0;
};

// Runs it on so many threads, each with its part of the bytes, in whole huge pages.
Took share(std::uint64_t bytes, unsigned threads,
           const std::function<void(std::uint64_t begin, std::uint64_t end)>& part) {
  std::vector<double> cpu_seconds(threads);
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t each = align_up((bytes + threads - 1) / threads, kHugePageBytes);
  {
    std::vector<std::jthread> running;
    for (unsigned i = 0; i < threads; ++i)
      running.emplace_back([&, i] {
        bind_to_node(i);
        part(std::min(bytes, i * each), std::min(bytes, (i + 1) * each));
        cpu_seconds[i] = static_cast<double>(counters_of_this_thread().cpu_ns) / 1e9;
      });
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  return {took.count(), std::accumulate(cpu_seconds.begin(), cpu_seconds.end(), 0.0)};
}

// Backs every page of it, as the daemon does: by one call, or page by page on a kernel before 5.14.
Took touch(const ReferenceMemory& memory, unsigned threads) {
  const std::span<std::byte> bytes = memory.bytes();
  return share(bytes.size(), threads, [&](std::uint64_t at, std::uint64_t end) {
    if (at == end || ::madvise(bytes.data() + at, end - at, MADV_POPULATE_WRITE) == 0) return;
    for (; at < end; at += kPageBytes) static_cast<volatile std::byte*>(bytes.data())[at] = std::byte{1};
  });
}

}  // namespace

Result<ReferenceMemory> ReferenceMemory::map(std::uint64_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  auto range = AddressRange::reserve(align_up(bytes, kHugePageBytes));
  if (!range) return std::unexpected(range.error());
  ReferenceMemory memory;
  memory.bytes_ = bytes;
  for (std::uint64_t at = 0; at < range->size(); at += kPieceBytes) {
    const std::uint64_t piece = std::min(kPieceBytes, range->size() - at);
    const auto placed = [&](int flags) {
      return ::mmap(range->data() + at, piece, PROT_READ | PROT_WRITE, kFlags | flags, -1, 0) != MAP_FAILED;
    };
    if (placed(MAP_HUGETLB | MAP_HUGE_2MB)) {
      memory.huge_bytes_ += piece;
    } else if (placed(0)) {
      (void)::madvise(range->data() + at, piece, MADV_HUGEPAGE);  // a wish, and the daemon's too
    } else {
      return fail(ErrorCode::kResourceExhausted, fmt::format("no memory for {} of a reference", format_bytes(bytes)),
                  errno);
    }
  }
  if (::madvise(range->data(), range->size(), MADV_DONTFORK) != 0)
    return fail(ErrorCode::kInternal, "memory that children do not inherit", errno);
  memory.range_ = std::move(*range);
  return memory;
}

std::string ReferenceMemory::pages() const {
  if (huge_bytes_ == 0) return "in ordinary pages";
  return huge_bytes_ >= bytes_ ? "in huge pages" : "in huge pages in part";
}

Result<MemcpyReference> MemcpyReference::make(std::uint64_t bytes) {
  MemcpyReference made;
  for (ReferenceMemory* const buffer : {&made.from_, &made.to_}) {
    auto mapped = ReferenceMemory::map(bytes);
    if (!mapped) return std::unexpected(mapped.error());
    *buffer = std::move(*mapped);
    touch(*buffer, copiers());
  }
  return made;
}

Result<MemcpyReference::Copied> MemcpyReference::copy() {
  const std::span<std::byte> from = from_.bytes();
  const std::span<std::byte> to = to_.bytes();
  fill(from, 0, ++version_);
  const Took took = share(from.size(), copiers(), [&](std::uint64_t at, std::uint64_t end) {
    for (; at < end; at += std::min(kMiB, end - at))
      std::memcpy(to.data() + at, from.data() + at, std::min(kMiB, end - at));
  });
  if (const auto right = check(to, 0, version_); !right) return std::unexpected(right.error());
  return Copied{static_cast<double>(from.size()) / took.seconds, took.cpu_seconds};
}

std::string MemcpyReference::described() const {
  return fmt::format("memcpy by {} threads {}", copiers(), to_.pages());
}

Result<Touched> map_and_touch(std::uint64_t bytes) {
  const auto begin = std::chrono::steady_clock::now();
  const auto memory = ReferenceMemory::map(bytes);
  if (!memory) return std::unexpected(memory.error());
  const double mapping = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const Took took = touch(*memory, processors());
  return Touched{mapping + took.seconds, took.cpu_seconds,
                 fmt::format("mmap and touch by {} threads {}", processors(), memory->pages())};
}

}  // namespace terrace::bench
