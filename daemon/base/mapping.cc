// SPDX-License-Identifier: Apache-2.0
#include "base/mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace {
namespace {

constexpr std::uint64_t kRangeAlignment = 2 * kMiB;

std::unexpected<Error> system_fail(const char* call, std::uint64_t bytes) {
  const int error = errno;
  return fail(error == ENOMEM ? ErrorCode::kResourceExhausted : ErrorCode::kInternal,
              fmt::format("{} of {}: {}", call, format_bytes(bytes), std::strerror(error)), error);
}

// A kernel that does not know how dumps them, which is no reason to do without the memory.
void keep_out_of_core_files(void* address, std::uint64_t bytes) { (void)madvise(address, bytes, MADV_DONTDUMP); }

}  // namespace

Result<AddressRange> AddressRange::reserve(std::uint64_t bytes) {
  AddressRange range;
  range.whole_bytes_ = bytes + kRangeAlignment;
  void* whole = mmap(nullptr, range.whole_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (whole == MAP_FAILED) return system_fail("reserving address space", bytes);
  range.whole_ = whole;
  range.data_ = reinterpret_cast<std::byte*>(align_up(reinterpret_cast<std::uintptr_t>(whole), kRangeAlignment));
  range.bytes_ = bytes;
  return range;
}

Result<AddressRange> AddressRange::map(int fd, std::uint64_t bytes, int protection) {
  void* whole = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (whole == MAP_FAILED) return system_fail("mapping", bytes);
  AddressRange range;
  range.whole_ = whole;
  range.whole_bytes_ = bytes;
  range.data_ = static_cast<std::byte*>(whole);
  range.bytes_ = bytes;
  keep_out_of_core_files(whole, bytes);
  return range;
}

AddressRange::AddressRange(AddressRange&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      whole_(std::exchange(other.whole_, nullptr)),
      whole_bytes_(std::exchange(other.whole_bytes_, 0)) {}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  if (this != &other) {
    if (whole_ != nullptr) munmap(whole_, whole_bytes_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    whole_ = std::exchange(other.whole_, nullptr);
    whole_bytes_ = std::exchange(other.whole_bytes_, 0);
  }
  return *this;
}

AddressRange::~AddressRange() {
  if (whole_ != nullptr) munmap(whole_, whole_bytes_);
}

Result<void> AddressRange::place(std::uint64_t offset, std::uint64_t bytes, int fd, int protection,
                                 std::uint64_t from) {
  TERRACE_CHECK(offset <= bytes_ && bytes <= bytes_ - offset);
  if (mmap(data_ + offset, bytes, protection, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(from)) == MAP_FAILED)
    return system_fail("mapping", bytes);
  keep_out_of_core_files(data_ + offset, bytes);
  return {};
}

Result<void> AddressRange::clear(std::uint64_t offset, std::uint64_t bytes) {
  TERRACE_CHECK(offset <= bytes_ && bytes <= bytes_ - offset);
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(data_ + offset, bytes, PROT_NONE, kFlags, -1, 0) == MAP_FAILED) return system_fail("unmapping", bytes);
  return {};
}

Result<Fd> sealed_memfd(const char* name, std::uint64_t bytes, unsigned memfd_flags) {
  Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | memfd_flags));
  if (!fd) return system_fail("memfd_create", bytes);
  if (fchmod(fd.get(), 0600) != 0) return system_fail("fchmod of a memfd", bytes);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return system_fail("sizing a memfd", bytes);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_fail("sealing a memfd", bytes);
  return fd;
}

}  // namespace terrace
