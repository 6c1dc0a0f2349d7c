// SPDX-License-Identifier: Apache-2.0
// One way in which this process sees a place's host memory: to read alone, or to write, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "gpu.h"
#include "host_pins.h"
#include "terrace/error.h"

namespace terrace::client {

// A range of addresses, into which segments are mapped side by side. The driver takes a copy within one registration
// alone; segments are registered one by one as they come, and tensors straddle them. So beside a GPU there is a second
// range of addresses for the same memory, where what straddles segments is registered as it is leased.
class HostView {
 public:
  // What segments and the ranges are aligned to, so that huge pages can be mapped.
  static constexpr std::uint64_t kGranuleBytes = 2ull << 20;

  // `bytes`: whole granules. Null: there is no address space for it.
  static std::unique_ptr<HostView> reserve(std::uint64_t bytes, bool read_only, bool beside_gpu);
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;
  ~HostView();

  // One thread at a time, as all but the addresses. Whole granules.
  Result<void> map(std::uint64_t offset, std::uint64_t bytes, int fd);
  // Before the segment is unmapped, or another is mapped there.
  void unpin(std::uint64_t offset, std::uint64_t bytes);
  Result<void> unmap(std::uint64_t offset, std::uint64_t bytes);
  // Pins by this GPU's driver, from now on: segments when told to, and what straddles them when it is leased.
  void pin_by(const std::shared_ptr<Gpu>& gpu);
  // Of different segments several threads at once, while nobody maps or unmaps.
  void pin_segment(std::uint64_t offset, std::uint64_t bytes);
  std::uint64_t pinned_bytes() const { return segment_pins_.pinned_bytes(); }

  bool read_only() const { return read_only_; }
  // By which what is leased here is pinned; null: nothing is.
  std::shared_ptr<Gpu> gpu() const;
  bool beside_gpu() const { return straddlers_ != nullptr; }
  // Of what lies within a segment. Thread-safe, as the next.
  std::byte* address(std::uint64_t offset) const { return segments_ + offset; }
  // Beside a GPU, of a leased tensor that lies in more than one. Pins it, if it was not pinned there before.
  std::byte* straddling_address(std::uint64_t offset, std::uint64_t bytes);

 private:
  HostView(std::uint64_t bytes, bool read_only) : bytes_(bytes), read_only_(read_only) {}
  Result<void> map_all(std::uint64_t offset, std::uint64_t bytes, int protection, int flags, int fd);

  const std::uint64_t bytes_;
  const bool read_only_;
  std::byte* segments_ = nullptr;
  std::byte* straddlers_ = nullptr;  // null where no GPU copies from here
  HostPins segment_pins_;
  HostPins straddler_pins_;
  mutable std::mutex mutex_;  // guards gpu_
  std::shared_ptr<Gpu> gpu_;  // null: nothing is pinned
};

}  // namespace terrace::client
