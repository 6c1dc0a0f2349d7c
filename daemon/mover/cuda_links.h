// SPDX-License-Identifier: Apache-2.0
// The streams of every GPU that there is a tier of: of their own for each direction, and for what somebody waits for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/ids.h"
#include "mover/cuda_lane.h"
#include "mover/transfer.h"
#include "terrace/error.h"
#include "tier/mapped_tier.h"

namespace terrace::mover {

// One GPU's. The reactor's.
class CudaLink {
 public:
  enum class Way : std::uint8_t { kUp, kDown, kWithin };
  // Copies that overlap themselves go through memory of the device's own, so much at a time.
  static constexpr std::uint64_t kOverlapBytesMax = 4 * std::uint64_t{1024} * 1024;

  static Result<std::unique_ptr<CudaLink>> create(tier::CudaContext& context, int wake);
  ~CudaLink();
  CudaLink(const CudaLink&) = delete;
  CudaLink& operator=(const CudaLink&) = delete;

  CudaLane& lane(Way way, Class urgency);
  // Within the device, from range to range, which may overlap; at most kOverlapBytesMax if they do.
  Result<void> move(CudaLane& lane, std::byte* to, const std::byte* from, std::uint64_t bytes);
  void collect();
  tier::CudaContext& context() { return context_; }

 private:
  explicit CudaLink(tier::CudaContext& context) : context_(context) {}

  tier::CudaContext& context_;
  std::array<std::unique_ptr<CudaLane>, 5> lanes_;  // up and down, for the urgent and for the others, and within
  cuda::Pointer scratch_ = 0;                       // kOverlapBytesMax, once they were needed
};

// All of them. The reactor's.
class CudaLinks {
 public:
  // Of the tiers that are a GPU's, by TierId; null ones are passed over. A GPU that gives no streams is given up
  // (CudaContext::give_up()), and has no link.
  static Result<CudaLinks> create(const std::vector<tier::MappedTier*>& tiers);

  // Null: not a GPU's.
  CudaLink* of(TierId tier) const { return index(tier) < links_.size() ? links_[index(tier)].get() : nullptr; }
  // Without that GPU, which is given up for this reason.
  void give_up(const tier::CudaContext* context, const Error& why);
  // Any GPU's context: what is pinned, is pinned for all of them. Null: there is none.
  tier::CudaContext* any() const;
  // Readable while there is something to collect; -1 where there are no GPUs.
  int descriptor() const { return wake_.get(); }
  void collect();

 private:
  Fd wake_;
  std::vector<std::unique_ptr<CudaLink>> links_;  // by TierId
};

}  // namespace terrace::mover
