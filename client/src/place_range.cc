// SPDX-License-Identifier: Apache-2.0
#include "place_range.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "in_parallel.h"

namespace terrace::client {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

constexpr std::uint64_t granules_up(std::uint64_t bytes) {
  return (bytes + PlaceRange::kGranuleBytes - 1) / PlaceRange::kGranuleBytes;
}

// All 0 of what is no descriptor.
struct stat stat_of(int fd) {
  struct stat there{};
  static_cast<void>(::fstat(fd, &there));
  return there;
}

void set(std::vector<std::atomic<std::uint64_t>>& bits, std::uint64_t granule, bool value) {
  const std::uint64_t bit = std::uint64_t{1} << granule % 64;
  if (value) {
    bits[granule / 64].fetch_or(bit, std::memory_order_release);
  } else {
    bits[granule / 64].fetch_and(~bit, std::memory_order_release);
  }
}

bool is_set(const std::vector<std::atomic<std::uint64_t>>& bits, std::uint64_t granule) {
  return (bits[granule / 64].load(std::memory_order_acquire) >> granule % 64 & 1) != 0;
}

}  // namespace

PlaceRange::PlaceRange(const shm::PlaceRecord& record, Use use)
    : record_(record),
      reserved_bytes_(granules_up(record.range_bytes) * kGranuleBytes),
      mapped_((granules_up(record.range_bytes) + 63) / 64),
      begins_(mapped_.size()),
      read_only_(use.read_only),
      is_gpu_(is_gpu(record)) {}

Result<std::unique_ptr<PlaceRange>> PlaceRange::reserve(const shm::PlaceRecord& record, Use use) {
  if (record.range_bytes > kRangeBytesMax) {
    return fail(ErrorCode::kInternal, "terraced offers a place of " + std::to_string(record.range_bytes) +
                                          " bytes, and no process has more than " + std::to_string(kRangeBytesMax) +
                                          " bytes of address space");
  }
  std::unique_ptr<PlaceRange> range(new PlaceRange(record, use));
  if (range->is_gpu_) return range;  // a trainer that leases nothing there need not have the GPU
  if (Result<void> reserved = range->reserve_views(use.beside_gpu); !reserved) return std::unexpected(reserved.error());
  return range;
}

Result<void> PlaceRange::reserve_views(bool beside_gpu) {
  const bool twice = record_.writable_only == 0 && !read_only_;
  writable_ = HostView::reserve(reserved_bytes_, read_only_, beside_gpu);
  if (twice && writable_ != nullptr) readable_ = HostView::reserve(reserved_bytes_, true, beside_gpu);
  if (writable_ != nullptr && (!twice || readable_ != nullptr)) return {};
  return fail(ErrorCode::kResourceExhausted,
              "no " + std::to_string(record_.range_bytes) +
                  " bytes of address space for the session's memory: raise RLIMIT_AS (ulimit -v)",
              ENOMEM);
}

PlaceRange::~PlaceRange() {
  if (gpu_memory_ == nullptr) return;
  for (const auto& [offset, segment] : segments_) static_cast<void>(gpu_->unmap(gpu_memory_ + offset, segment.bytes));
  gpu_->give_back(gpu_memory_, reserved_bytes_);
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
  return found != segments_.end() && found->second.bytes == bytes &&
         (is_gpu_ || found->second.inode == stat_of(fd).st_ino);
}

Result<void> PlaceRange::keep_only(const std::set<std::uint64_t>& offsets) {
  {
    const std::lock_guard lock(seams_mutex_);
    std::erase_if(seams_, [&](const auto& seam) { return !offsets.contains(seam.first); });
  }
  for (const auto& [offset, segment] : std::map(segments_))
    if (!offsets.contains(offset))
      if (Result<void> gone = unmap(offset, segment.bytes); !gone) return gone;
  return {};
}

Result<void> PlaceRange::stitch(const shm::StitchMessage& part) {
  const std::span pieces(part.pieces.data(), std::min<std::size_t>(part.count, part.pieces.size()));
  const auto wrong = [&](const char* what) {
    return fail(ErrorCode::kInvalidArgument, "terraced passed a part of a seam of " + std::to_string(part.bytes) +
                                                 " bytes in place " + std::to_string(record_.place) + " that " + what);
  };
  if (!is_seam(part.offset) || part.bytes == 0 || part.bytes > kRangeBytesMax || part.bytes % kPageBytes != 0)
    return wrong("is none");
  const std::lock_guard lock(seams_mutex_);
  auto& seam = seams_[part.offset];
  if (seam.writable != nullptr && seam.mapped_bytes == seam.bytes && seam.bytes == part.bytes) return {};
  if (part.at != 0 && seam.failed) return std::unexpected(*seam.failed);
  if (part.at == 0) {
    seam = Seam{.bytes = part.bytes, .mapped_bytes = 0, .readable = nullptr, .writable = nullptr};
    for (std::unique_ptr<SeamView>* const view : {&seam.readable, &seam.writable}) {
      if (view == &seam.readable && readable_ == nullptr) continue;
      auto reserved = SeamView::reserve(part.bytes);
      if (!reserved) return std::unexpected(*(seam.failed = reserved.error()));
      *view = std::move(*reserved);
    }
  }
  if (seam.writable == nullptr || part.at != seam.mapped_bytes || part.bytes != seam.bytes)
    return wrong("does not follow the one before");
  for (const shm::StitchPiece& piece : pieces) {
    if (piece.bytes == 0 || piece.bytes > seam.bytes - seam.mapped_bytes || piece.bytes % kPageBytes != 0 ||
        piece.offset % kPageBytes != 0)
      return wrong("is not whole pages of it");
    if (Result<void> shown = show_piece(seam, piece); !shown) return std::unexpected(*(seam.failed = shown.error()));
  }
  return {};
}

// Segment by segment: each is a mapping of its own.
Result<void> PlaceRange::show_piece(Seam& seam, shm::StitchPiece piece) {
  while (piece.bytes > 0) {
    const auto next = segments_.upper_bound(piece.offset);
    const auto segment = next == segments_.begin() ? segments_.end() : std::prev(next);
    if (segment == segments_.end() || piece.offset - segment->first >= segment->second.bytes) {
      return fail(ErrorCode::kInvalidArgument, "terraced passed a seam of memory at " + std::to_string(piece.offset) +
                                                   " of place " + std::to_string(record_.place) +
                                                   ", where no segment is mapped");
    }
    const std::uint64_t bytes = std::min(piece.bytes, segment->first + segment->second.bytes - piece.offset);
    Result<void> shown = seam.writable->show(seam.mapped_bytes, writable_->address(piece.offset), bytes);
    if (shown && seam.readable != nullptr)
      shown = seam.readable->show(seam.mapped_bytes, readable_->address(piece.offset), bytes);
    if (!shown) return shown;
    seam.mapped_bytes += bytes;
    piece.offset += bytes;
    piece.bytes -= bytes;
  }
  return {};
}

void PlaceRange::unstitch(std::uint64_t offset) {
  const std::lock_guard lock(seams_mutex_);
  seams_.erase(offset);
}

Result<void> PlaceRange::strike_out(std::uint64_t offset, std::uint64_t bytes) {
  for (auto at = segments_.begin(); at != segments_.end();) {
    const auto& [start, segment] = *at;
    if (start >= offset + bytes || offset >= start + segment.bytes) {
      ++at;
      continue;
    }
    if (is_gpu_) {
      const Result<void> gone = gpu_->unmap(gpu_memory_ + start, segment.bytes);
      if (!gone && gone.error().code != ErrorCode::kDataLoss) return gone;  // a lost GPU has nothing mapped
    } else {
      writable_->unpin(start, segment.bytes);
      if (readable_ != nullptr) readable_->unpin(start, segment.bytes);
    }
    set(begins_, start / kGranuleBytes, false);
    unfinished_.erase(start);
    at = segments_.erase(at);
  }
  return {};
}

Result<void> PlaceRange::map(std::uint64_t offset, std::uint64_t bytes, int fd) {
  if (Result<void> fits = check(offset, bytes); !fits) return fits;
  const struct stat memory = stat_of(fd);
  // What lies beyond its end would be the trainer's SIGBUS.
  if (!is_gpu_ && static_cast<std::uint64_t>(memory.st_size) < bytes) {
    return fail(ErrorCode::kInvalidArgument, "terraced passed a segment of " + std::to_string(bytes) +
                                                 " bytes with memory of " + std::to_string(memory.st_size));
  }
  if (Result<void> gone = strike_out(offset, bytes); !gone) return gone;
  if (is_gpu_) return map_gpu(offset, bytes, fd);
  if (readable_ != nullptr) {
    if (Result<void> done = readable_->map(offset, bytes, fd); !done) return done;
  }
  if (Result<void> done = writable_->map(offset, bytes, fd); !done) return done;
  segments_.emplace(offset, Segment{bytes, memory.st_ino});
  if (pins_) {
    unfinished_.emplace(offset, bytes);
  } else {
    show(offset, bytes);
  }
  return {};
}

void PlaceRange::show(std::uint64_t offset, std::uint64_t bytes) {
  set(begins_, offset / kGranuleBytes, true);
  set_mapped(offset, bytes, true);
}

Result<void> PlaceRange::unmap(std::uint64_t offset, std::uint64_t bytes) {
  if (Result<void> fits = check(offset, bytes); !fits) return fits;
  set_mapped(offset, bytes, false);
  if (Result<void> gone = strike_out(offset, bytes); !gone || is_gpu_) return gone;
  if (readable_ != nullptr) {
    if (Result<void> done = readable_->unmap(offset, bytes); !done) return done;
  }
  return writable_->unmap(offset, bytes);
}

Result<void> PlaceRange::map_gpu(std::uint64_t offset, std::uint64_t bytes, int fd) {
  if (gpu_ == nullptr) {
    auto found = Gpu::find(record_.gpu);
    if (!found) return std::unexpected(found.error());
    auto reserved = (*found)->reserve(reserved_bytes_);
    if (!reserved) return std::unexpected(reserved.error());
    gpu_ = std::move(*found);
    gpu_memory_ = *reserved;
  }
  if (Result<void> done = gpu_->map(gpu_memory_ + offset, bytes, fd); !done) return done;
  segments_.emplace(offset, Segment{bytes, 0});
  set_mapped(offset, bytes, true);
  return {};
}

void PlaceRange::pin(const std::shared_ptr<Gpu>& gpu) {
  if (is_gpu_ || pins_) return;
  pins_ = true;
  // Where memory that may not be written cannot be pinned, read leases use the range that is.
  if (readable_ != nullptr && !gpu->pins_read_only()) reads_writable_ = true;
  writable_->pin_by(gpu);
  if (readable_ != nullptr && !reads_writable_) readable_->pin_by(gpu);
  Extents mapped;
  for (const auto& [offset, segment] : segments_) mapped.emplace(offset, segment.bytes);
  pin_segments(mapped);
}

void PlaceRange::finish() {
  const Extents finished = std::exchange(unfinished_, {});
  pin_segments(finished);
  for (const auto& [offset, bytes] : finished) show(offset, bytes);
}

// Each view's registrations are its own.
void PlaceRange::pin_segments(const Extents& extents) {
  struct Piece {
    HostView* view;
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  std::vector<Piece> pieces;
  for (HostView* const view : {writable_.get(), readable_.get()})
    for (const auto& [offset, bytes] : extents)
      if (view != nullptr) pieces.push_back({view, offset, bytes});
  in_parallel(pieces.size(),
              [&](std::size_t each) { pieces[each].view->pin_segment(pieces[each].offset, pieces[each].bytes); });
}

std::byte* PlaceRange::address(std::uint64_t offset, std::uint64_t bytes, bool writable) const {
  if (is_gpu_) return gpu_memory_ + offset;
  const bool one_view = readable_ == nullptr || reads_writable_.load(std::memory_order_relaxed);
  HostView& view = writable || one_view ? *writable_ : *readable_;
  if (is_seam(offset)) {
    const std::shared_lock lock(seams_mutex_);
    const Seam& seam = seams_.at(offset);
    return (&view == writable_.get() ? *seam.writable : *seam.readable).address(view.gpu(), view.read_only());
  }
  return view.beside_gpu() && straddles(offset, bytes) ? view.straddling_address(offset, bytes) : view.address(offset);
}

bool PlaceRange::straddles(std::uint64_t offset, std::uint64_t bytes) const {
  const std::uint64_t end = granules_up(offset + bytes);
  for (std::uint64_t granule = offset / kGranuleBytes + 1; granule < end; ++granule)
    if (is_set(begins_, granule)) return true;
  return false;
}

bool PlaceRange::mapped(std::uint64_t offset, std::uint64_t bytes) const {
  if (is_seam(offset)) {
    const std::shared_lock lock(seams_mutex_);
    const auto found = seams_.find(offset);
    return found != seams_.end() && found->second.mapped_bytes == found->second.bytes && bytes <= found->second.bytes;
  }
  const std::uint64_t end = granules_up(offset + bytes);
  for (std::uint64_t granule = offset / kGranuleBytes; granule < end; ++granule)
    if (!is_set(mapped_, granule)) return false;
  return true;
}

void PlaceRange::set_mapped(std::uint64_t offset, std::uint64_t bytes, bool mapped) {
  for (std::uint64_t granule = offset / kGranuleBytes; granule < (offset + bytes) / kGranuleBytes; ++granule)
    set(mapped_, granule, mapped);
}

}  // namespace terrace::client
