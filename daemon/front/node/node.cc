// SPDX-License-Identifier: Apache-2.0
#include "front/node/node.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "config/capacity.h"
#include "cuda/driver.h"
#include "shm/layout.h"
#include "tier/device/cuda_device.h"
#include "tier/device/emulated_device.h"
#include "tier/device/failed_device.h"
#include "tier/memory/memory_tier.h"

namespace terrace::front {
namespace {

constexpr double kSpareShare = 0.01;  // of the block tier, for regions that fail
static_assert(config::kSegmentUnitBytes == tier::MemfdSegments::kSegmentUnit);
static_assert(config::kStripeBytes == tier::BlockFile::kStripeBytes);

tier::MemfdOptions memfd_options(const config::TierConfig& config, std::uint64_t capacity) {
  const auto huge_pages = [&] {
    switch (config.huge_pages) {
      case config::HugePages::kNever:
        return tier::HugePages::kNever;
      case config::HugePages::k2MiB:
        return tier::HugePages::k2MiB;
      case config::HugePages::kAuto:
        break;
    }
    return tier::HugePages::kAuto;
  }();
  return {.capacity_bytes = capacity,
          .numa_node = config.numa_node,
          .near_node = config.near_node,
          .huge_pages = huge_pages};
}

Result<std::unique_ptr<tier::MappedTier>> open_gpu(const config::TierConfig& config, std::uint64_t capacity) {
  if (config.failure) return std::unexpected(*config.failure);
  const int ordinal = config.gpu().value();
  const auto api = cuda::load();
  if (!api) return std::unexpected(api.error());
  auto context = tier::CudaContext::open(**api, ordinal);
  if (!context) return std::unexpected(std::move(context.error()));
  auto tier = tier::CudaDevice::create(std::move(*context), capacity);
  if (!tier) return std::unexpected(std::move(tier.error()));
  return tier;
}

// By which trainers know it; where the driver does not even say that, one that no GPU has.
cuda::Uuid uuid_of(int ordinal) {
  cuda::Uuid uuid;
  uuid.fill(0xFF);
  cuda::Device device = 0;
  const auto api = cuda::load();
  if (api && (*api)->device(&device, ordinal)) static_cast<void>((*api)->device_uuid.status(&uuid, device));
  return uuid;
}

// One that fails costs its own tier, and nothing else.
std::unique_ptr<tier::MappedTier> gpu_tier(const config::TierConfig& config, std::uint64_t capacity) {
  auto gpu = open_gpu(config, capacity);
  if (gpu) return std::move(*gpu);
  return std::make_unique<tier::FailedDevice>(gpu.error(), uuid_of(config.gpu().value()));
}

engine::TierOptions tier_options(const config::TierConfig& config, std::uint32_t devices) {
  engine::TierOptions options{.name = {}, .capacity_bytes = config.capacity.bytes, .high_mark = config.high_mark};
  switch (config.kind) {
    case config::TierKind::kDevice:
      options.name = fmt::format("device:{}", devices);
      options.kind = tier::Kind::kDevice;
      if (config.gpu()) options.identity = config.gpu_identity;
      options.write_back_early = config.writes_back_early();
      break;
    case config::TierKind::kMemory:
      options.name = "memory";
      options.kind = tier::Kind::kMemory;
      break;
    case config::TierKind::kBlock:
      options.name = "block";
      options.kind = tier::Kind::kBlock;
      options.write_budget_bytes_per_day = config.write_budget_bytes_per_day;
      return options;
  }
  options.segment_bytes = config::segment_bytes(config.capacity.bytes);
  TERRACE_CHECK(options.capacity_bytes != 0 && options.capacity_bytes % options.segment_bytes == 0);  // resolved
  return options;
}

std::unique_ptr<tier::MappedTier> mapped_tier(const config::TierConfig& config, const engine::TierOptions& options) {
  if (config.gpu()) return gpu_tier(config, options.capacity_bytes);
  const tier::MemfdOptions memfd = memfd_options(config, options.capacity_bytes);
  if (options.kind == tier::Kind::kDevice) return std::make_unique<tier::EmulatedDevice>(memfd);
  return std::make_unique<tier::MemoryTier>(memfd);
}

Result<void> add_block(Node& node, const config::TierConfig& config, bool may_wait) {
  auto block =
      tier::BlockFile::open({.paths = config.paths, .capacity_bytes = config.capacity.bytes, .may_wait = may_wait});
  if (!block) return std::unexpected(block.error());
  node.block = std::move(*block);
  node.mapped.push_back(nullptr);
  TERRACE_CHECK(node.block->capacity_bytes() == config.capacity.bytes);  // resolved
  node.options.tiers.back().identity = node.block->identity();
  return {};
}

}  // namespace

mover::Tiers Node::borrowed() const {
  mover::Tiers tiers{{}, block.get()};
  for (const auto& tier : mapped) tiers.mapped.push_back(tier.get());
  return tiers;
}

tier::MappedTier* Node::at_place(std::uint32_t place) const {
  const auto found = std::ranges::find(places, place);
  return found == places.end() ? nullptr : mapped[static_cast<std::size_t>(found - places.begin())].get();
}

void Node::add_devices(engine::Status& status) const {
  for (std::size_t tier = 0; tier < mapped.size() && tier < status.tiers.size(); ++tier) {
    if (mapped[tier] == nullptr && block && !block->owned())
      status.tiers[tier].failure = "its files are not free before the last read and write of a former daemon are done";
    if (mapped[tier] == nullptr) continue;
    if (const auto* gpu = mapped[tier]->cuda()) status.tiers[tier].context_bytes = gpu->own_bytes();
    if (const auto failed = mapped[tier]->failure()) status.tiers[tier].failure = failed->message;
  }
}

std::array<std::uint8_t, 16> Node::gpu_at(std::uint32_t place) const {
  const tier::MappedTier* tier = at_place(place);
  return tier != nullptr ? tier->gpu() : std::array<std::uint8_t, 16>{};
}

engine::Options engine_options(const config::Config& config) {
  engine::Options options;
  std::uint32_t devices = 0;
  for (const config::TierConfig& tier : config.tiers) {
    options.tiers.push_back(tier_options(tier, devices));
    if (tier.kind == config::TierKind::kDevice) ++devices;
    if (tier.kind != config::TierKind::kBlock) continue;
    options.spare_share = kSpareShare;
    options.tiers.back().identity = tier::BlockFile::identity_of(tier.paths);
  }
  for (std::uint32_t tenant = 0; tenant < config.tenants.size(); ++tenant) {
    const config::TenantConfig& each = config.tenants[tenant];
    options.tenants.push_back(XXH3_64bits(each.name.data(), each.name.size()));
    options.weights.push_back(each.weight);
    if (each.quota_bytes != 0) options.quotas.push_back({.tenant_socket = tenant, .home_bytes_max = each.quota_bytes});
  }
  switch (config.policy) {
    case config::Policy::kNextUse:
      options.make_policy = engine::make_next_use_policy;
      options.observe = true;
      break;
    case config::Policy::kLru:
      break;
    case config::Policy::kS3Fifo:
      options.make_policy = engine::make_s3_fifo_policy;
      break;
  }
  options.sessions_max = config.limits.sessions_max;
  options.requests_waiting_max = config.limits.requests_queued_max;
  // So that transfers of one chunk keep the mover busy.
  options.transfers_in_flight_max = mover::Mover::Options{}.chunks_max;
  return options;
}

Result<Node> make_node(const config::Config& config, bool may_wait) {
  Node node;
  node.options = engine_options(config);
  std::uint32_t devices = 0;
  for (std::size_t tier = 0; tier < config.tiers.size(); ++tier) {
    const bool is_block = config.tiers[tier].kind == config::TierKind::kBlock;
    const bool is_device = config.tiers[tier].kind == config::TierKind::kDevice;
    node.places.push_back(is_block ? shm::kPlaceBlock : is_device ? shm::kPlaceDevice0 + devices++ : shm::kPlaceHost);
    if (!is_block) {
      node.mapped.push_back(mapped_tier(config.tiers[tier], node.options.tiers[tier]));
      node.options.tiers[tier].stitches = node.mapped.back()->stitches();
    } else if (const auto added = add_block(node, config.tiers[tier], may_wait); !added) {
      return std::unexpected(added.error());
    }
  }
  return node;
}

}  // namespace terrace::front
