// SPDX-License-Identifier: Apache-2.0
#include "tier/memory/memfd_segments.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; glibc's name for it came later
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

namespace terrace::tier {
namespace {

// Pages are taken back in slices, so that no lock of the kernel's is held for long.
constexpr std::uint64_t kSliceBytes = 64 * kMiB;
constexpr std::uint64_t kPartBytes = 16 * kMiB;  // that a thread backs at a time
constexpr std::uint64_t kPopulatorsMax = 16;     // threads that back a segment together

// What the system can give without swapping, by its own estimate; nothing where it does not say.
std::optional<std::uint64_t> available_bytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "re");
  if (file == nullptr) return std::nullopt;
  std::optional<std::uint64_t> found;
  std::array<char, 256> line{};
  while (!found && std::fgets(line.data(), line.size(), file) != nullptr) {
    unsigned long long kib = 0;  // NOLINT(google-runtime-int): scanf's type
    if (std::sscanf(line.data(), "MemAvailable: %llu kB", &kib) == 1) found = kib * kKiB;  // NOLINT(cert-err34-c)
  }
  std::fclose(file);
  return found;
}

std::unexpected<Error> no_memory(std::uint64_t bytes, const char* pages, int error) {
  const auto available = available_bytes();
  return fail(ErrorCode::kResourceExhausted,
              fmt::format("no memory for a segment of {} in {} pages ({}); {} are available: lower the tier's capacity "
                          "or free memory",
                          format_bytes(bytes), pages, std::strerror(error),
                          available ? format_bytes(*available) : std::string("an unknown number of bytes")),
              error);
}

// Whether the kernel has 2 MiB pages, reserved or on demand. Where it does not say, it may.
bool has_huge_pages() {
  for (const char* const path : {"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                                 "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages"}) {
    std::FILE* file = std::fopen(path, "re");
    unsigned long long pages = 0;  // NOLINT(google-runtime-int): scanf's type
    const bool none = file != nullptr && std::fscanf(file, "%llu", &pages) == 1 && pages == 0;  // NOLINT(cert-err34-c)
    if (file != nullptr) std::fclose(file);
    if (!none) return true;
  }
  return false;
}

bool node_exists(unsigned node) {
  return access(fmt::format("/sys/devices/system/node/node{}", node).c_str(), F_OK) == 0;
}

// Backs every page of a part now; 0 or the errno.
int populate_part(std::byte* memory, std::uint64_t bytes) {
  while (madvise(memory, bytes, MADV_POPULATE_WRITE) != 0)
    if (errno != EINTR && errno != EAGAIN) return errno;
  return 0;
}

// The same for all of a segment, by several threads: to zero pages is what takes the time, and a processor alone does
// not reach what the memory gives.
int populate(std::byte* memory, std::uint64_t bytes) {
  std::atomic<std::uint64_t> next = 0;
  std::atomic<int> error = 0;
  const auto populate_parts = [&] {
    for (std::uint64_t at = 0; error == 0 && (at = next.fetch_add(kPartBytes)) < bytes;)
      if (const int failed = populate_part(memory + at, std::min(kPartBytes, bytes - at)); failed != 0) error = failed;
  };
  {
    const std::uint64_t parts = (bytes + kPartBytes - 1) / kPartBytes;
    const std::uint64_t threads = std::min<std::uint64_t>({parts, std::thread::hardware_concurrency(), kPopulatorsMax});
    std::vector<std::jthread> others;
    try {
      for (std::uint64_t i = 1; i < threads; ++i) others.emplace_back(populate_parts);
    } catch (const std::system_error&) {  // no more threads: those that there are do it
    }
    populate_parts();
  }
  return error;
}

// A failure only means that the pages go when the last mapping does.
void punch(int fd, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += kSliceBytes) {
    (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                    static_cast<off_t>(std::min(kSliceBytes, bytes - at)));
  }
}

}  // namespace

MemfdSegments::MemfdSegments(Kind kind, const char* name, const MemfdOptions& options)
    : kind_(kind),
      name_(name),
      options_(options),
      tries_huge_(options.huge_pages == HugePages::k2MiB ||
                  (options.huge_pages == HugePages::kAuto && has_huge_pages())) {}

// The policy set through any mapping is the memfd's own (shmem and hugetlb share it), so it holds for every page.
void MemfdSegments::bind(void* memory, std::uint64_t bytes) const {
  const std::optional<unsigned> node = options_.numa_node ? options_.numa_node : options_.near_node;
  if (!node || !node_exists(*node)) return;
  constexpr unsigned kBits = 8 * sizeof(unsigned long);  // NOLINT(google-runtime-int): the system call's type
  std::vector<unsigned long> nodes(*node / kBits + 1);
  nodes.back() = 1UL << (*node % kBits);
  const int policy = options_.numa_node ? MPOL_BIND : MPOL_PREFERRED;
  // The kernel takes one bit less than it is told.
  if (syscall(SYS_mbind, memory, bytes, policy, nodes.data(), nodes.size() * kBits + 1, 0) != 0) {
    binding_error_.store(errno, std::memory_order_relaxed);
  }
}

Result<Fd> MemfdSegments::create(std::uint64_t bytes, bool huge) const {
  const char* pages = huge ? "2 MiB" : "ordinary";
  auto fd = sealed_memfd(name_, bytes, huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0U);
  if (!fd) return fd;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (memory == MAP_FAILED) return no_memory(bytes, pages, errno);
  (void)madvise(memory, bytes, MADV_DONTDUMP);
  bind(memory, bytes);
  if (!huge && options_.huge_pages != HugePages::kNever) (void)madvise(memory, bytes, MADV_HUGEPAGE);
  int error = populate(static_cast<std::byte*>(memory), bytes);
  munmap(memory, bytes);
  if (error == EINVAL)  // a kernel before 5.14
    error = fallocate(fd->get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (error != 0) return no_memory(bytes, pages, error);
  (huge ? huge_bytes_ : ordinary_bytes_).fetch_add(bytes, std::memory_order_relaxed);
  return fd;
}

Result<Fd> MemfdSegments::create_segment(std::uint64_t bytes) const {
  TERRACE_CHECK(bytes > 0 && bytes % kSegmentUnit == 0);
  if (tries_huge_) {
    auto segment = create(bytes, true);
    if (segment || options_.huge_pages == HugePages::k2MiB) return segment;
  }
  // Touching more than there is would have the kernel kill somebody.
  if (const auto available = available_bytes(); available && *available < bytes) {
    return no_memory(bytes, "ordinary", ENOMEM);
  }
  return create(bytes, false);
}

std::shared_ptr<MemfdSegments::Space> MemfdSegments::space_of(SessionId session) const {
  const auto found = spaces_.find(session);
  return found == spaces_.end() ? nullptr : found->second;
}

Result<void> MemfdSegments::install(SessionId session, Extent extent, Fd segment) {
  TERRACE_CHECK(segment && extent.bytes > 0 && extent.offset % kSegmentUnit == 0 && extent.bytes % kSegmentUnit == 0);
  TERRACE_CHECK(extent.offset <= options_.capacity_bytes && extent.bytes <= options_.capacity_bytes - extent.offset);
  const std::lock_guard lock(mutex_);
  auto space = space_of(session);
  if (space == nullptr) {
    auto range = AddressRange::reserve(options_.capacity_bytes);
    if (!range) return std::unexpected(std::move(range.error()));
    space = std::make_shared<Space>(Space{.range = std::move(*range), .segments = {}, .seams = {}});
    spaces_.emplace(session, space);
  }
  const auto last = space->segments.empty() ? space->segments.end() : std::prev(space->segments.end());
  TERRACE_CHECK(last == space->segments.end() || last->first + last->second.bytes <= extent.offset);
  auto placed = space->range.place(extent.offset, extent.bytes, segment.get(), PROT_READ | PROT_WRITE);
  if (!placed) return placed;
  space->segments.emplace(extent.offset, Segment{.bytes = extent.bytes, .fd = std::move(segment)});
  return {};
}

// They were backed through another mapping. A page of 4 KiB that is found by a fault takes as long as to copy it.
void MemfdSegments::map_pages(SessionId session, Extent extent) const {
  std::shared_ptr<Space> space;
  {
    const std::lock_guard lock(mutex_);
    space = space_of(session);
  }
  if (space != nullptr) (void)populate(space->range.data() + extent.offset, extent.bytes);
}

Result<void> MemfdSegments::stitch(SessionId session, Extent seam, std::span<const Extent> pieces) {
  TERRACE_CHECK(seam.offset >= kSeamsBegin && seam.bytes > 0);
  auto range = AddressRange::reserve(seam.bytes);
  if (!range) return std::unexpected(std::move(range.error()));
  std::uint64_t at = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto space = space_of(session);
    TERRACE_CHECK(space != nullptr);
    for (Extent left : pieces) {
      while (left.bytes > 0) {  // a piece may lie in several segments
        const auto segment = std::prev(space->segments.upper_bound(left.offset));
        const std::uint64_t from = left.offset - segment->first;
        const std::uint64_t bytes = std::min(left.bytes, segment->second.bytes - from);
        const int fd = segment->second.fd.get();
        if (auto placed = range->place(at, bytes, fd, PROT_READ | PROT_WRITE, from); !placed) return placed;
        at += bytes;
        left = {left.offset + bytes, left.bytes - bytes};
      }
    }
    TERRACE_CHECK(at == seam.bytes);
  }
  (void)populate_part(range->data(), seam.bytes);  // its pages are there; nobody waits for the lock meanwhile
  const std::lock_guard lock(mutex_);
  TERRACE_CHECK(space_of(session)->seams.emplace(seam.offset, std::move(*range)).second);
  return {};
}

void MemfdSegments::unstitch(SessionId session, std::uint64_t offset) {
  AddressRange leaving;  // unmapped without the lock
  const std::lock_guard lock(mutex_);
  const auto space = space_of(session);
  if (space == nullptr) return;
  if (auto seam = space->seams.extract(offset); !seam.empty()) leaving = std::move(seam.mapped());
}

int MemfdSegments::descriptor(SessionId session, std::uint64_t offset) const {
  const std::lock_guard lock(mutex_);
  const auto space = space_of(session);
  TERRACE_CHECK(space != nullptr);
  const auto found = space->segments.find(offset);
  TERRACE_CHECK(found != space->segments.end());
  return found->second.fd.get();
}

Result<void> MemfdSegments::remove(SessionId session, Extent extent) {
  std::shared_ptr<Space> space;
  std::map<std::uint64_t, Segment> leaving;
  {
    const std::lock_guard lock(mutex_);
    space = space_of(session);
    if (space != nullptr) {
      while (!space->segments.empty()) {
        const auto last = std::prev(space->segments.end());
        if (last->first < extent.offset || last->first + last->second.bytes > extent.end()) break;
        leaving.insert(space->segments.extract(last));
      }
    }
  }
  if (leaving.empty()) {
    return fail(ErrorCode::kNotFound, fmt::format("session {} has no segment at its end within [{}, {})",
                                                  static_cast<std::uint32_t>(session), extent.offset, extent.end()));
  }
  // Punched first: that needs no lock on the address space, and leaves little for the unmapping to do.
  for (const auto& [offset, segment] : leaving) {
    if (!leaves_bytes_.load(std::memory_order_relaxed)) punch(segment.fd.get(), segment.bytes);
    if (auto cleared = space->range.clear(offset, segment.bytes); !cleared) return cleared;
  }
  return {};
}

void MemfdSegments::drop(SessionId session) {
  std::shared_ptr<Space> space;
  {
    const std::lock_guard lock(mutex_);
    const auto found = spaces_.find(session);
    if (found == spaces_.end()) return;
    space = std::move(found->second);
    spaces_.erase(found);
  }
  if (leaves_bytes_.load(std::memory_order_relaxed)) return;
  for (const auto& [offset, segment] : space->segments) punch(segment.fd.get(), segment.bytes);
}

std::byte* MemfdSegments::address(SessionId session, std::uint64_t offset) const {
  const std::lock_guard lock(mutex_);
  const auto space = space_of(session);
  TERRACE_CHECK(space != nullptr);
  if (offset >= kSeamsBegin) {
    const auto beyond = space->seams.upper_bound(offset);
    TERRACE_CHECK(beyond != space->seams.begin());
    const auto seam = std::prev(beyond);
    TERRACE_CHECK(offset - seam->first < seam->second.size());
    return seam->second.data() + (offset - seam->first);
  }
  TERRACE_CHECK(offset < space->range.size());
  return space->range.data() + offset;
}

}  // namespace terrace::tier
