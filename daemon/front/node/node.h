// SPDX-License-Identifier: Apache-2.0
// The tiers of a configuration, made; and the engine's view of them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "config/config.h"
#include "engine/engine.h"
#include "mover/mover.h"
#include "terrace/error.h"
#include "tier/block/block_file.h"
#include "tier/mapped_tier.h"

namespace terrace::front {

struct Node {
  std::vector<std::unique_ptr<tier::MappedTier>> mapped;  // by TierId; null for the block tier
  std::unique_ptr<tier::BlockFile> block;
  engine::Options options;
  std::vector<std::uint32_t> places;  // by TierId: shm::kPlaceHost, shm::kPlaceDevice0 + N, shm::kPlaceBlock

  mover::Tiers borrowed() const;
  // The tier of a place that clients map; none for places that are not there.
  tier::MappedTier* at_place(std::uint32_t place) const;
  // Says of each tier of a status why it does not serve: its GPU failed, or its files are another's still.
  void add_devices(engine::Status& status) const;
  bool is_gpu(std::size_t tier) const { return mapped[tier]->gpu() != std::array<std::uint8_t, 16>{}; }
  // The uuid of the GPU whose memory a place is; zeros where it is none's.
  std::array<std::uint8_t, 16> gpu_at(std::uint32_t place) const;
};

// What a resolved configuration makes of the engine.
engine::Options engine_options(const config::Config& config);

// Makes what a resolved configuration asks for. A GPU that fails is a tier that says so (MappedTier::failure()). Block
// files that another process holds are an error, or with `may_wait` not owned yet (BlockFile::owned()).
Result<Node> make_node(const config::Config& config, bool may_wait = false);

}  // namespace terrace::front
