// SPDX-License-Identifier: Apache-2.0
#include "tier/block/checksum_table.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "tier/block/xxh3.h"

namespace terrace::tier {

static_assert(sizeof(ChunkName) == 24, "hashed as it lies in memory");

std::uint64_t checksum(const ChunkName& name, std::span<const std::byte> bytes) {
  const std::uint64_t seed = XXH3_64bits(&name, sizeof(name));
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

namespace {

std::uint64_t table_bytes(std::uint64_t entries) {
  return align_up(std::max<std::uint64_t>(entries, 1) * sizeof(std::uint64_t), kPageBytes);
}

}  // namespace

Result<ChecksumTable> ChecksumTable::create(std::uint64_t entries) {
  auto memory = sealed_memfd("terrace-checksums", table_bytes(entries));
  if (!memory) return std::unexpected(std::move(memory.error()));
  return adopt(std::move(*memory), entries);
}

Result<ChecksumTable> ChecksumTable::adopt(Fd memory, std::uint64_t entries) {
  const std::uint64_t bytes = table_bytes(entries);
  struct stat there{};
  if (fstat(memory.get(), &there) != 0) return fail(ErrorCode::kInternal, "the checksums cannot be looked at", errno);
  if (static_cast<std::uint64_t>(there.st_size) != bytes)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("the checksums that a former daemon left have {} bytes, not {}", there.st_size, bytes));
  auto range = AddressRange::map(memory.get(), bytes, PROT_READ | PROT_WRITE);
  if (!range) return std::unexpected(std::move(range.error()));
  ChecksumTable table;
  table.memory_ = std::move(memory);
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
