// SPDX-License-Identifier: Apache-2.0
// HBM: memory of one GPU, allocated by the daemon, exported to trainers as descriptors, and mapped side by side at
// addresses that stay (DESIGN decisions 3, 11).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tier/device/cuda_context.h"
#include "tier/mapped_tier.h"

namespace terrace::tier {

// See MappedTier. address() is one of the device's: the CPU cannot read there. A segment lives as long as anybody holds
// its descriptor or has it mapped (the driver's rule for cuMemRelease); it is zeroed when it is made, and never given
// out again. remove() and drop() are thread-safe and for a worker, as create_segment() is.
class CudaDevice final : public MappedTier {
 public:
  static constexpr std::uint64_t kSegmentUnit = 2 * std::uint64_t{1024} * 1024;

  // `capacity_bytes`: the address space that each session gets; a multiple of kSegmentUnit. kFailedPrecondition where
  // the device gives memory in larger pieces.
  static Result<std::unique_ptr<CudaDevice>> create(std::shared_ptr<CudaContext> context, std::uint64_t capacity_bytes);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  Kind kind() const override { return Kind::kDevice; }
  // kResourceExhausted names what is free; kUnavailable where the device is lost.
  Result<Fd> create_segment(std::uint64_t bytes) const override;
  Result<void> install(SessionId session, Extent extent, Fd segment) override;
  int descriptor(SessionId session, std::uint64_t offset) const override;
  Result<void> remove(SessionId session, Extent extent) override;
  void drop(SessionId session) override;
  void leave_bytes() override {}  // they are their holders', here in any case
  std::byte* address(SessionId session, std::uint64_t offset) const override;
  CudaContext* cuda() const override { return context_.get(); }
  std::array<std::uint8_t, 16> gpu() const override { return context_->uuid(); }
  std::optional<Error> failure() const override { return context_->cause(); }

 private:
  struct Segment {
    std::uint64_t bytes = 0;
    Fd fd;
  };
  struct Space {
    cuda::Pointer base = 0;
    std::map<std::uint64_t, Segment> segments;  // by offset
  };

  CudaDevice(std::shared_ptr<CudaContext> context, std::uint64_t capacity_bytes)
      : context_(std::move(context)), capacity_bytes_(capacity_bytes) {}
  cuda::AllocationProperties properties() const;
  Result<void> map(cuda::Pointer at, std::uint64_t bytes, cuda::Allocation allocation) const;
  Result<void> zero(cuda::Allocation allocation, std::uint64_t bytes) const;
  Result<void> add(SessionId session, Extent extent, Fd segment);
  Error with_room(Error error, std::uint64_t bytes) const;
  void give_back(Space& space) const;

  const std::shared_ptr<CudaContext> context_;
  const std::uint64_t capacity_bytes_;
  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<SessionId, Space> spaces_;
};

}  // namespace terrace::tier
