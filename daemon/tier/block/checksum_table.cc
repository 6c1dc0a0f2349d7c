// SPDX-License-Identifier: Apache-2.0
#include "tier/block/checksum_table.h"

#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace::tier {

static_assert(sizeof(ChunkName) == 24, "hashed as it lies in memory");

std::uint64_t checksum(const ChunkName& name, std::span<const std::byte> bytes) {
  const std::uint64_t seed = XXH3_64bits(&name, sizeof(name));
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Result<ChecksumTable> ChecksumTable::create(std::uint64_t entries) {
  const std::uint64_t bytes = align_up(std::max<std::uint64_t>(entries, 1) * sizeof(std::uint64_t), kPageBytes);
  auto fd = sealed_memfd("terrace-checksums", bytes);
  if (!fd) return std::unexpected(std::move(fd.error()));
  auto range = AddressRange::map(fd->get(), bytes, PROT_READ | PROT_WRITE);
  if (!range) return std::unexpected(std::move(range.error()));
  ChecksumTable table;
  table.range_ = std::move(*range);
  table.entries_ = entries;
  return table;
}

std::uint64_t ChecksumTable::get(std::uint64_t entry) const {
  TERRACE_CHECK(entry < entries_);
  return reinterpret_cast<const std::uint64_t*>(range_.data())[entry];
}

void ChecksumTable::set(std::uint64_t entry, std::uint64_t checksum) {
  TERRACE_CHECK(entry < entries_);
  reinterpret_cast<std::uint64_t*>(range_.data())[entry] = checksum;
}

}  // namespace terrace::tier
