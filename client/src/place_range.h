// SPDX-License-Identifier: Apache-2.0
// The address space of one place, into which the daemon's segments are mapped as they come: the host's to be read and,
// elsewhere, to be written (a device's once, writable). A GPU's range is one of its own addresses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <shared_mutex>
#include <vector>

#include "gpu.h"
#include "host_view.h"
#include "seam_view.h"
#include "shm/message.h"
#include "terrace/error.h"

namespace terrace::client {

class PlaceRange {
 public:
  // Segments are whole runs of these.
  static constexpr std::uint64_t kGranuleBytes = HostView::kGranuleBytes;
  // What a process can address.
  static constexpr std::uint64_t kRangeBytesMax = 1ull << 47;

  struct Use {
    bool read_only = false;   // memory that this process may not write, mapped once
    bool beside_gpu = false;  // the session has a GPU's place, too
  };
  static Result<std::unique_ptr<PlaceRange>> reserve(const shm::PlaceRecord& record, Use use);
  PlaceRange(const PlaceRange&) = delete;
  PlaceRange& operator=(const PlaceRange&) = delete;
  ~PlaceRange();

  const shm::PlaceRecord& record() const { return record_; }

  // Whether exactly this segment is mapped. One thread at a time, as both below.
  bool has(std::uint64_t offset, std::uint64_t bytes, int fd) const;
  // kInvalidArgument for a segment that does not fit the range. Once there is something to pin(), host memory counts as
  // mapped() from the next finish() on.
  Result<void> map(std::uint64_t offset, std::uint64_t bytes, int fd);
  Result<void> unmap(std::uint64_t offset, std::uint64_t bytes);
  // Maps a part of a seam; a seam that is whole already stays as it is. kInvalidArgument for one that is not of mapped
  // segments.
  Result<void> stitch(const shm::StitchMessage& part);
  void unstitch(std::uint64_t offset);
  // Unmaps every segment and every seam that does not begin at one of these offsets.
  Result<void> keep_only(const std::set<std::uint64_t>& offsets);
  // Pins host memory for this process's own copies: what is mapped, and from now on what comes, as far as the driver
  // takes it. The same thread's, as the two below.
  void pin(const std::shared_ptr<Gpu>& gpu);
  // How many segments finish() waits for.
  std::size_t unfinished() const { return unfinished_.size(); }
  // Pins the segments that came, several at once, and then lets leases have them: a registration that is made beside a
  // copy from there can fail the copy.
  void finish();
  std::uint64_t pinned_bytes() const { return writable_ == nullptr ? 0 : writable_->pinned_bytes(); }
  // The GPU whose memory this is, once a segment was mapped; null: not a GPU's. The same thread's; gpu_ordinal() and
  // gpu_context() also whoever's that has found memory mapped().
  const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
  bool is_gpu() const { return is_gpu_; }
  static bool is_seam_offset(std::uint64_t offset) { return offset >= shm::kSeamsBegin; }
  static bool is_gpu(const shm::PlaceRecord& record) { return record.gpu != std::array<std::uint8_t, 16>{}; }
  std::optional<int> gpu_ordinal() const { return is_gpu_ ? std::optional(gpu_->ordinal()) : std::nullopt; }

  // Whether [offset, offset + bytes) lies in the range, or is a seam's. Thread-safe, as all below.
  bool holds(std::uint64_t offset, std::uint64_t bytes) const {
    return is_seam(offset) || (offset <= record_.range_bytes && bytes <= record_.range_bytes - offset);
  }
  // Whether every byte of it is mapped.
  bool mapped(std::uint64_t offset, std::uint64_t bytes) const;
  // Where a leased tensor's bytes are, all of them mapped.
  std::byte* address(std::uint64_t offset, std::uint64_t bytes, bool writable) const;

 private:
  struct Segment {
    std::uint64_t bytes = 0;
    std::uint64_t inode = 0;  // memfds have one each; a GPU's segments do not, and are told apart by where they lie
  };
  struct Seam {
    std::uint64_t bytes = 0;
    std::uint64_t mapped_bytes = 0;
    std::optional<Error> failed{};       // so that what follows of it is passed over
    std::unique_ptr<SeamView> readable;  // null where the place is mapped once
    std::unique_ptr<SeamView> writable;
  };
  PlaceRange(const shm::PlaceRecord& record, Use use);
  Result<void> reserve_views(bool beside_gpu);
  Result<void> check(std::uint64_t offset, std::uint64_t bytes) const;
  // Forgets the segments that touch this range: a GPU's are unmapped, the CPU's are pinned no more.
  Result<void> strike_out(std::uint64_t offset, std::uint64_t bytes);
  void set_mapped(std::uint64_t offset, std::uint64_t bytes, bool mapped);
  bool is_seam(std::uint64_t offset) const { return !is_gpu_ && is_seam_offset(offset); }
  Result<void> show_piece(Seam& seam, shm::StitchPiece piece);
  // Whether a segment begins within.
  bool straddles(std::uint64_t offset, std::uint64_t bytes) const;
  Result<void> map_gpu(std::uint64_t offset, std::uint64_t bytes, int fd);
  // By offset and size.
  using Extents = std::map<std::uint64_t, std::uint64_t>;
  void pin_segments(const Extents& extents);
  void show(std::uint64_t offset, std::uint64_t bytes);

  using Bits = std::vector<std::atomic<std::uint64_t>>;  // one a granule

  shm::PlaceRecord record_;
  std::uint64_t reserved_bytes_ = 0;           // the range, in whole granules
  std::unique_ptr<HostView> readable_;         // null where the place is mapped once
  std::unique_ptr<HostView> writable_;         // null: a GPU's
  std::map<std::uint64_t, Segment> segments_;  // by offset
  Extents unfinished_;                         // of those
  mutable std::shared_mutex seams_mutex_;      // guards what follows
  std::map<std::uint64_t, Seam> seams_;        // by offset
  Bits mapped_;
  Bits begins_;  // a segment does
  const bool read_only_;
  const bool is_gpu_;
  std::shared_ptr<Gpu> gpu_;
  std::byte* gpu_memory_ = nullptr;
  bool pins_ = false;
  std::atomic<bool> reads_writable_ = false;  // read leases use the writable range: that is the one that is pinned
};

}  // namespace terrace::client
