// SPDX-License-Identifier: Apache-2.0
#include "host_view.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace terrace::client {
namespace {

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Neither forked children nor core files get to see it.
void keep_private(std::byte* address, std::uint64_t bytes) {
  ::madvise(address, bytes, MADV_DONTFORK);
  ::madvise(address, bytes, MADV_DONTDUMP);
}

// Address space alone. Null: there is none.
std::byte* reserve_aligned(std::uint64_t bytes) {
  const std::uint64_t whole = bytes + HostView::kGranuleBytes;
  void* found = ::mmap(nullptr, whole, PROT_NONE, kNothing, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(found);
  const std::uint64_t beyond = reinterpret_cast<std::uintptr_t>(start) % HostView::kGranuleBytes;
  const std::uint64_t before = beyond == 0 ? 0 : HostView::kGranuleBytes - beyond;
  if (before != 0) ::munmap(start, before);
  ::munmap(start + before + bytes, whole - before - bytes);
  keep_private(start + before, bytes);
  return start + before;
}

}  // namespace

std::unique_ptr<HostView> HostView::reserve(std::uint64_t bytes, bool read_only, bool beside_gpu) {
  std::unique_ptr<HostView> view(new HostView(bytes, read_only));
  view->segments_ = reserve_aligned(bytes);
  if (beside_gpu) view->straddlers_ = reserve_aligned(bytes);
  if (view->segments_ == nullptr || (beside_gpu && view->straddlers_ == nullptr)) return nullptr;
  return view;
}

HostView::~HostView() {
  unpin(0, bytes_);
  for (std::byte* const range : {segments_, straddlers_})
    if (range != nullptr) ::munmap(range, bytes_);
}

Result<void> HostView::map_all(std::uint64_t offset, std::uint64_t bytes, int protection, int flags, int fd) {
  for (std::byte* const range : {segments_, straddlers_}) {
    if (range == nullptr) continue;
    if (::mmap(range + offset, bytes, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
      const int error = errno;
      return fail(ErrorCode::kInternal,
                  "mapping a segment of " + std::to_string(bytes) + " bytes failed: " + std::strerror(error), error);
    }
    keep_private(range + offset, bytes);
  }
  return {};
}

Result<void> HostView::map(std::uint64_t offset, std::uint64_t bytes, int fd) {
  return map_all(offset, bytes, read_only_ ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd);
}

Result<void> HostView::unmap(std::uint64_t offset, std::uint64_t bytes) {
  return map_all(offset, bytes, PROT_NONE, kNothing, -1);
}

void HostView::unpin(std::uint64_t offset, std::uint64_t bytes) {
  segment_pins_.remove(segments_ + offset, bytes);
  if (straddlers_ != nullptr) straddler_pins_.remove(straddlers_ + offset, bytes);
}

void HostView::pin_by(const std::shared_ptr<Gpu>& gpu) {
  const std::lock_guard lock(mutex_);
  gpu_ = gpu;
}

std::shared_ptr<Gpu> HostView::gpu() const {
  const std::lock_guard lock(mutex_);
  return gpu_;
}

void HostView::pin_segment(std::uint64_t offset, std::uint64_t bytes) {
  if (const auto by = gpu()) segment_pins_.pin(by, segments_ + offset, bytes, read_only_);
}

std::byte* HostView::straddling_address(std::uint64_t offset, std::uint64_t bytes) {
  if (const auto by = gpu()) straddler_pins_.pin(by, straddlers_ + offset, bytes, read_only_);
  return straddlers_ + offset;
}

}  // namespace terrace::client
