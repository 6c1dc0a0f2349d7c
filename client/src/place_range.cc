// SPDX-License-Identifier: Apache-2.0
#include "place_range.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace terrace::client {
namespace {

constexpr std::uint64_t granules_up(std::uint64_t bytes) {
  return (bytes + PlaceRange::kGranuleBytes - 1) / PlaceRange::kGranuleBytes;
}

// Neither forked children nor core files get to see it.
void keep_private(std::byte* address, std::uint64_t bytes) {
  ::madvise(address, bytes, MADV_DONTFORK);
  ::madvise(address, bytes, MADV_DONTDUMP);
}

// Address space alone, aligned to a granule so that huge pages can be mapped into it.
std::byte* reserve_aligned(std::uint64_t bytes) {
  const std::uint64_t whole = bytes + PlaceRange::kGranuleBytes;
  void* found = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(found);
  const std::uint64_t beyond = reinterpret_cast<std::uintptr_t>(start) % PlaceRange::kGranuleBytes;
  const std::uint64_t before = beyond == 0 ? 0 : PlaceRange::kGranuleBytes - beyond;
  if (before != 0) ::munmap(start, before);
  ::munmap(start + before + bytes, whole - before - bytes);
  keep_private(start + before, bytes);
  return start + before;
}

Result<void> map_at(std::byte* address, std::uint64_t bytes, int protection, int flags, int fd) {
  if (::mmap(address, bytes, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    return fail(ErrorCode::kInternal,
                "mapping a segment of " + std::to_string(bytes) + " bytes failed: " + std::strerror(error), error);
  }
  keep_private(address, bytes);
  return {};
}

std::uint64_t inode_of(int fd) {
  struct stat there{};
  return ::fstat(fd, &there) == 0 ? there.st_ino : 0;
}

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

PlaceRange::PlaceRange(const shm::PlaceRecord& record, bool read_only)
    : record_(record),
      reserved_bytes_(granules_up(record.range_bytes) * kGranuleBytes),
      granules_((granules_up(record.range_bytes) + 63) / 64),
      read_only_(read_only),
      is_gpu_(record.gpu != std::array<std::uint8_t, 16>{}) {}

Result<std::unique_ptr<PlaceRange>> PlaceRange::reserve(const shm::PlaceRecord& record, bool read_only) {
  if (record.range_bytes > kRangeBytesMax) {
    return fail(ErrorCode::kInternal, "terraced offers a place of " + std::to_string(record.range_bytes) +
                                          " bytes, and no process has more than " + std::to_string(kRangeBytesMax) +
                                          " bytes of address space");
  }
  std::unique_ptr<PlaceRange> range(new PlaceRange(record, read_only));
  if (range->is_gpu_) return range;  // a trainer that leases nothing there need not have the GPU
  range->writable_ = reserve_aligned(range->reserved_bytes_);
  const bool twice = record.writable_only == 0 && !read_only;
  if (twice && range->writable_ != nullptr) {
    range->readable_ = reserve_aligned(range->reserved_bytes_);
  }
  if (range->writable_ == nullptr || (twice && range->readable_ == nullptr)) {
    return fail(ErrorCode::kResourceExhausted,
                "no " + std::to_string(record.range_bytes) +
                    " bytes of address space for the session's memory: raise RLIMIT_AS (ulimit -v)",
                ENOMEM);
  }
  return range;
}

PlaceRange::~PlaceRange() {
  if (is_gpu_) {
    if (writable_ == nullptr) return;
    for (const auto& [offset, segment] : segments_) static_cast<void>(gpu_->unmap(writable_ + offset, segment.bytes));
    gpu_->give_back(writable_, reserved_bytes_);
    return;
  }
  writable_pins_.clear();
  readable_pins_.clear();
  if (readable_ != nullptr) ::munmap(readable_, reserved_bytes_);
  if (writable_ != nullptr) ::munmap(writable_, reserved_bytes_);
}

Result<void> PlaceRange::check(std::uint64_t offset, std::uint64_t bytes) const {
  if (bytes != 0 && offset % kGranuleBytes == 0 && bytes % kGranuleBytes == 0 && offset <= reserved_bytes_ &&
      bytes <= reserved_bytes_ - offset) {
    return {};
  }
  return fail(ErrorCode::kInvalidArgument,
              "terraced passed a segment of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                  ", which is not whole pieces of 2 MiB within the place's " + std::to_string(record_.range_bytes));
}

bool PlaceRange::has(std::uint64_t offset, std::uint64_t bytes, int fd) const {
  const auto found = segments_.find(offset);
  return found != segments_.end() && found->second.bytes == bytes && (is_gpu_ || found->second.inode == inode_of(fd));
}

Result<void> PlaceRange::keep_only(const std::set<std::uint64_t>& offsets) {
  for (const auto& [offset, segment] : std::map(segments_))
    if (!offsets.contains(offset))
      if (Result<void> gone = unmap(offset, segment.bytes); !gone) return gone;
  return {};
}

Result<void> PlaceRange::strike_out(std::uint64_t offset, std::uint64_t bytes) {
  for (auto at = segments_.begin(); at != segments_.end();) {
    const auto& [start, segment] = *at;
    if (start >= offset + bytes || offset >= start + segment.bytes) {
      ++at;
      continue;
    }
    if (is_gpu_) {
      const Result<void> gone = gpu_->unmap(writable_ + start, segment.bytes);
      if (!gone && gone.error().code != ErrorCode::kUnavailable) return gone;  // a lost GPU has nothing mapped
    } else {
      writable_pins_.remove(writable_ + start, segment.bytes);
      if (readable_ != nullptr) readable_pins_.remove(readable_ + start, segment.bytes);
      pinned_bytes_ = writable_pins_.pinned_bytes();
    }
    at = segments_.erase(at);
  }
  return {};
}

Result<void> PlaceRange::map(std::uint64_t offset, std::uint64_t bytes, int fd) {
  if (Result<void> fits = check(offset, bytes); !fits) return fits;
  if (Result<void> gone = strike_out(offset, bytes); !gone) return gone;
  if (is_gpu_) return map_gpu(offset, bytes, fd);
  const int protection = read_only_ ? PROT_READ : PROT_READ | PROT_WRITE;
  if (readable_ != nullptr) {
    if (Result<void> done = map_at(readable_ + offset, bytes, PROT_READ, MAP_SHARED, fd); !done) return done;
  }
  if (Result<void> done = map_at(writable_ + offset, bytes, protection, MAP_SHARED, fd); !done) return done;
  segments_.emplace(offset, Segment{bytes, inode_of(fd)});
  if (pin_gpu_ != nullptr) pin_segment(offset, bytes);  // before anybody copies from it
  set_mapped(offset, bytes, true);
  return {};
}

Result<void> PlaceRange::unmap(std::uint64_t offset, std::uint64_t bytes) {
  if (Result<void> fits = check(offset, bytes); !fits) return fits;
  set_mapped(offset, bytes, false);
  if (Result<void> gone = strike_out(offset, bytes); !gone || is_gpu_) return gone;
  if (readable_ != nullptr) {
    if (Result<void> done = map_at(readable_ + offset, bytes, PROT_NONE, kNothing, -1); !done) return done;
  }
  return map_at(writable_ + offset, bytes, PROT_NONE, kNothing, -1);
}

Result<void> PlaceRange::map_gpu(std::uint64_t offset, std::uint64_t bytes, int fd) {
  if (gpu_ == nullptr) {
    auto found = Gpu::find(record_.gpu);
    if (!found) return std::unexpected(found.error());
    auto reserved = (*found)->reserve(reserved_bytes_);
    if (!reserved) return std::unexpected(reserved.error());
    gpu_ = std::move(*found);
    writable_ = *reserved;
  }
  if (Result<void> done = gpu_->map(writable_ + offset, bytes, fd); !done) return done;
  segments_.emplace(offset, Segment{bytes, 0});
  set_mapped(offset, bytes, true);
  return {};
}

void PlaceRange::pin(const std::shared_ptr<Gpu>& gpu) {
  if (is_gpu_ || pin_gpu_ != nullptr || pin_refused_) return;
  pin_gpu_ = gpu;
  // Where memory that may not be written cannot be pinned, read leases use the range that is.
  if (readable_ != nullptr && !gpu->pins_read_only()) reads_writable_ = true;
  for (const auto& [offset, segment] : segments_) {
    if (pin_gpu_ != nullptr) pin_segment(offset, segment.bytes);
  }
}

void PlaceRange::pin_segment(std::uint64_t offset, std::uint64_t bytes) {
  const bool two_ranges = readable_ != nullptr && !reads_writable_;
  const bool pinned = writable_pins_.add(pin_gpu_, writable_ + offset, bytes, read_only_) &&
                      (!two_ranges || readable_pins_.add(pin_gpu_, readable_ + offset, bytes, true));
  if (!pinned) {
    writable_pins_.clear();
    readable_pins_.clear();
    pin_gpu_ = nullptr;
    pin_refused_ = true;
  }
  pinned_bytes_ = writable_pins_.pinned_bytes();
}

bool PlaceRange::mapped(std::uint64_t offset, std::uint64_t bytes) const {
  const std::uint64_t end = granules_up(offset + bytes);
  for (std::uint64_t granule = offset / kGranuleBytes; granule < end; ++granule) {
    if ((granules_[granule / 64].load(std::memory_order_acquire) >> granule % 64 & 1) == 0) return false;
  }
  return true;
}

void PlaceRange::set_mapped(std::uint64_t offset, std::uint64_t bytes, bool mapped) {
  for (std::uint64_t granule = offset / kGranuleBytes; granule < (offset + bytes) / kGranuleBytes; ++granule) {
    const std::uint64_t bit = std::uint64_t{1} << granule % 64;
    if (mapped) {
      granules_[granule / 64].fetch_or(bit, std::memory_order_release);
    } else {
      granules_[granule / 64].fetch_and(~bit, std::memory_order_release);
    }
  }
}

}  // namespace terrace::client
