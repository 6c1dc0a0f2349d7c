// SPDX-License-Identifier: Apache-2.0
#include "front/survival/catalog_home.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"

namespace terrace::front {

Result<void> CatalogHome::make(const engine::CatalogShape& shape) {
  const std::uint64_t needed = align_up(engine::CatalogMemory::bytes_needed(shape), kPageBytes);
  auto memory = sealed_memfd("terrace-catalog", needed);
  if (!memory) return std::unexpected(memory.error());
  memory_ = std::move(*memory);
  const auto mapped = map(memory_, needed);
  if (!mapped) return std::unexpected(mapped.error());
  catalog_ = engine::CatalogMemory::format(*mapped, shape);
  return {};
}

Result<void> CatalogHome::open(const Fd& memory, const engine::CatalogShape& shape) {
  struct stat there{};
  if (fstat(memory.get(), &there) != 0) return fail(ErrorCode::kInternal, "the catalog cannot be looked at", errno);
  const auto mapped = map(memory, static_cast<std::uint64_t>(there.st_size));
  if (!mapped) return std::unexpected(mapped.error());
  auto opened = engine::CatalogMemory::open(*mapped, shape);
  if (!opened) return std::unexpected(opened.error());
  catalog_ = std::move(*opened);
  return {};
}

bool CatalogHome::is_nobodys() const {
  const auto shape = engine::CatalogMemory::shape_of(bytes());
  if (!shape) return false;
  const auto view = engine::CatalogMemory::check(bytes(), *shape);
  return view && std::ranges::none_of(view->sessions, &engine::SessionRecord::lives);
}

Result<std::span<std::byte>> CatalogHome::map(const Fd& memory, std::uint64_t bytes) {
  auto mapped = AddressRange::map(memory.get(), bytes, PROT_READ | PROT_WRITE);
  if (!mapped) return std::unexpected(mapped.error());
  range_ = std::move(*mapped);
  return std::span<std::byte>(range_.data(), bytes);
}

}  // namespace terrace::front
