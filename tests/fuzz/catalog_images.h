// SPDX-License-Identifier: Apache-2.0
// Catalogs as engines leave them when their process ends: after random operations, mostly in the middle of a change.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/engine.h"

namespace terrace::fuzz {

using Page = std::array<std::byte, kPageBytes>;

// What is left of one daemon.
struct CatalogImage {
  struct Table {
    SessionId session{};
    std::uint32_t completions = 0;
    std::vector<std::array<std::byte, sizeof(shm::TableSlot)>> slots;
  };
  engine::Options options;
  engine::CatalogShape shape;
  std::vector<std::pair<std::uint64_t, Page>> pages;  // offset in the catalog: those that are not zero
  std::vector<Table> tables;
};

// The same ones in every process. A sim::Violation ends it if an engine breaks the laws meanwhile.
std::vector<CatalogImage> make_catalog_images();

}  // namespace terrace::fuzz
