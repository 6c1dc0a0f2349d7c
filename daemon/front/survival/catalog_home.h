// SPDX-License-Identifier: Apache-2.0
// The memory that the engine's catalog lies in: a former daemon's, or one of our own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "base/fd.h"
#include "base/mapping.h"
#include "engine/catalog/memory.h"
#include "terrace/error.h"

namespace terrace::front {

class CatalogHome {
 public:
  // A fresh one. kResourceExhausted: there is no memory for it.
  Result<void> make(const engine::CatalogShape& shape);
  // One that a former daemon left. `memory` is borrowed until adopt(). Errors as engine::CatalogMemory::open()'s.
  Result<void> open(const Fd& memory, const engine::CatalogShape& shape);
  // What was opened is gone on with.
  void adopt(Fd memory) { memory_ = std::move(memory); }
  // What was opened is of no use.
  void give_up() { catalog_.reset(); }

  bool is_open() const { return catalog_.has_value(); }
  engine::CatalogMemory& catalog() { return *catalog_; }
  std::span<const std::byte> bytes() const { return {range_.data(), range_.size()}; }
  const Fd& memory() const { return memory_; }
  // It is a catalog, of whatever shape, of which no session lives.
  bool is_nobodys() const;

 private:
  Result<std::span<std::byte>> map(const Fd& memory, std::uint64_t bytes);

  Fd memory_;
  AddressRange range_;
  std::optional<engine::CatalogMemory> catalog_;
};

}  // namespace terrace::front
