// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "conformance/rig_device.h"
#include "tier/device/emulated_device.h"

namespace terrace::conformance {
namespace {

class Emulated final : public RigDevice {
 public:
  explicit Emulated(std::uint64_t capacity_bytes)
      : tier_({.capacity_bytes = capacity_bytes, .numa_node = {}, .huge_pages = tier::HugePages::kNever}) {}
  tier::MappedTier& tier() override { return tier_; }
  void read(const std::byte* from, std::span<std::byte> to) override { std::memcpy(to.data(), from, to.size()); }
  void write(std::byte* to, std::span<const std::byte> from) override { std::memcpy(to, from.data(), from.size()); }

 private:
  tier::EmulatedDevice tier_;
};

}  // namespace

std::unique_ptr<RigDevice> make_rig_device(std::uint64_t capacity_bytes) {
  return std::make_unique<Emulated>(capacity_bytes);
}

}  // namespace terrace::conformance
