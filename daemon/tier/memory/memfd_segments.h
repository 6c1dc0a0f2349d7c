// SPDX-License-Identifier: Apache-2.0
// Segments that are memfds: what the memory tier and the emulated device have in common.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "base/mapping.h"
#include "tier/mapped_tier.h"

namespace terrace::tier {

enum class HugePages : std::uint8_t {
  kAuto,   // 2 MiB pages where the kernel had some reserved at the start and has enough, else ordinary ones
  kNever,  // ordinary pages
  k2MiB,   // 2 MiB pages, or an error
};

struct MemfdOptions {
  std::uint64_t capacity_bytes = 0;     // address space that each session gets
  std::optional<unsigned> numa_node;    // memory is bound to it; none: wherever the kernel likes
  std::optional<unsigned> near_node{};  // where numa_node is none: taken there first, and elsewhere when it is full
  HugePages huge_pages = HugePages::kAuto;
};

// See MappedTier. Here remove() and drop() are thread-safe and for a worker, as create_segment() is: giving a GiB of
// pages back takes a tenth of a second. address() and descriptor() may be called meanwhile.
class MemfdSegments : public MappedTier {
 public:
  static constexpr std::uint64_t kSegmentUnit = 2 * std::uint64_t{1024} * 1024;

  Kind kind() const override { return kind_; }
  // kResourceExhausted names what is free where that is less, without touching it.
  Result<Fd> create_segment(std::uint64_t bytes) const override;
  Result<void> install(SessionId session, Extent extent, Fd segment) override;
  void map_pages(SessionId session, Extent extent) const override;
  // Only ordinary pages can be mapped at any address.
  bool stitches() const override { return !tries_huge_; }
  Result<void> stitch(SessionId session, Extent seam, std::span<const Extent> pieces) override;
  void unstitch(SessionId session, std::uint64_t offset) override;
  int descriptor(SessionId session, std::uint64_t offset) const override;
  Result<void> remove(SessionId session, Extent extent) override;
  void drop(SessionId session) override;
  void leave_bytes() override { leaves_bytes_.store(true, std::memory_order_relaxed); }
  std::byte* address(SessionId session, std::uint64_t offset) const override;

  // Bytes of segments that were made with 2 MiB pages, and with ordinary ones, since the start.
  std::uint64_t huge_bytes() const { return huge_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t ordinary_bytes() const { return ordinary_bytes_.load(std::memory_order_relaxed); }
  // errno of the last segment that could not be bound to numa_node or near_node (a container's seccomp filter says
  // EPERM), and so lies wherever the kernel liked; 0: none.
  int binding_error() const { return binding_error_.load(std::memory_order_relaxed); }

 protected:
  // `name` shows in /proc as the memfds' name.
  MemfdSegments(Kind kind, const char* name, const MemfdOptions& options);

 private:
  struct Segment {
    std::uint64_t bytes = 0;
    Fd fd;
  };
  struct Space {
    AddressRange range;
    std::map<std::uint64_t, Segment> segments;    // by offset
    std::map<std::uint64_t, AddressRange> seams;  // by offset
  };

  Result<Fd> create(std::uint64_t bytes, bool huge) const;
  void bind(void* memory, std::uint64_t bytes) const;
  std::shared_ptr<Space> space_of(SessionId session) const;

  Kind kind_;
  const char* name_;
  MemfdOptions options_;
  const bool tries_huge_;
  mutable std::atomic<std::uint64_t> huge_bytes_ = 0;
  mutable std::atomic<std::uint64_t> ordinary_bytes_ = 0;
  mutable std::atomic<int> binding_error_ = 0;
  std::atomic<bool> leaves_bytes_ = false;
  mutable std::mutex mutex_;  // guards what follows, and every Space's segments
  std::unordered_map<SessionId, std::shared_ptr<Space>> spaces_;
};

}  // namespace terrace::tier
