// SPDX-License-Identifier: Apache-2.0
// What the engine keeps of a tier, of all sessions together.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/residency/tensor.h"
#include "engine/values/options.h"
#include "engine/values/status.h"

namespace terrace::engine {

struct Tier {
  TierOptions options;
  Level level{};
  std::uint32_t place = 0;
  std::uint8_t unit = 0;  // of devices
  std::uint64_t used_bytes = 0;
  std::uint64_t high_mark_bytes = 0;
  bool above = false;  // its high mark
  std::uint64_t checksum_failures = 0;
  std::uint64_t io_errors = 0;
  bool failed = false;
  std::string loss{};  // what memory of it was lost by, the last time
  std::uint64_t lost_tensors = 0;
  std::array<std::uint64_t, kEvictionReasons> evictions{};
  PlaceStatus leases{};
  bool mapped() const { return level != Level::kBlock; }
};

}  // namespace terrace::engine
