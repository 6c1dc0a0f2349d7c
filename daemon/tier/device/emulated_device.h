// SPDX-License-Identifier: Apache-2.0
// A stand-in for a GPU's memory where there is none: the same contract over host memory, so that everything runs
// anywhere (DESIGN decision 11).
#pragma once

#include "tier/memory/memfd_segments.h"

namespace terrace::tier {

class EmulatedDevice final : public MemfdSegments {
 public:
  explicit EmulatedDevice(const MemfdOptions& options) : MemfdSegments(Kind::kDevice, "terrace-device", options) {}
};

}  // namespace terrace::tier
