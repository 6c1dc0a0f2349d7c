// SPDX-License-Identifier: Apache-2.0
// The device tier that the suite runs over, and how its bytes are reached past the mover: each kind of device links a
// source of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tier/mapped_tier.h"

namespace terrace::conformance {

class RigDevice {
 public:
  virtual ~RigDevice() = default;
  virtual tier::MappedTier& tier() = 0;
  virtual void read(const std::byte* from, std::span<std::byte> to) = 0;
  virtual void write(std::byte* to, std::span<const std::byte> from) = 0;
};

std::unique_ptr<RigDevice> make_rig_device(std::uint64_t capacity_bytes);

}  // namespace terrace::conformance
