// SPDX-License-Identifier: Apache-2.0
#include "tier/device/cuda_device.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace terrace::tier {
namespace {

// Ends whatever it holds by `end`, unless it was kept.
template <typename End>
class Finally {
 public:
  explicit Finally(End end) : end_(std::move(end)) {}
  ~Finally() { end_(); }
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;

 private:
  End end_;
};

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(std::shared_ptr<CudaContext> context,
                                                       std::uint64_t capacity_bytes) {
  TERRACE_CHECK(capacity_bytes > 0 && capacity_bytes % kSegmentUnit == 0);
  std::unique_ptr<CudaDevice> made(new CudaDevice(std::move(context), capacity_bytes));
  const cuda::AllocationProperties wanted = made->properties();
  std::size_t unit = 0;
  if (auto asked = made->context_->api().granularity(&unit, &wanted, cuda::kGranularityMinimum); !asked)
    return std::unexpected(std::move(asked.error()));
  if (unit == 0 || kSegmentUnit % unit != 0) {
    return fail(
        ErrorCode::kFailedPrecondition,
        fmt::format("cuda:{} ({}) gives memory in pieces of {}; segments are made of pieces of {}",
                    made->context_->ordinal(), made->context_->name(), format_bytes(unit), format_bytes(kSegmentUnit)));
  }
  return made;
}

CudaDevice::~CudaDevice() {
  for (auto& [session, space] : spaces_) give_back(space);
}

cuda::AllocationProperties CudaDevice::properties() const {
  cuda::AllocationProperties wanted;
  wanted.location.id = context_->device();
  return wanted;
}

Error CudaDevice::with_room(Error error, std::uint64_t bytes) const {
  const auto room = context_->room();
  error.message = fmt::format(
      "no memory for a segment of {} on cuda:{} ({}): {} of {} are free; lower the tier's "
      "capacity, or what else runs on the device",
      format_bytes(bytes), context_->ordinal(), error.message,
      room ? format_bytes(room->free_bytes) : "an unknown part", room ? format_bytes(room->total_bytes) : "it");
  return error;
}

Result<void> CudaDevice::map(cuda::Pointer at, std::uint64_t bytes, cuda::Allocation allocation) const {
  const cuda::Api& api = context_->api();
  if (auto mapped = api.map(at, bytes, 0, allocation, 0); !mapped) return mapped;
  cuda::AccessDescription access;
  access.location.id = context_->device();
  auto allowed = api.set_access(at, bytes, &access, 1);
  if (!allowed) static_cast<void>(api.unmap.status(at, bytes));
  return allowed;
}

// Somebody else's bytes may be in fresh memory.
Result<void> CudaDevice::zero(cuda::Allocation allocation, std::uint64_t bytes) const {
  const cuda::Api& api = context_->api();
  const cuda::Current current(api, context_->context());
  if (!current.result()) return current.result();
  cuda::Pointer at = 0;
  if (auto reserved = api.reserve(&at, bytes, kSegmentUnit, 0, 0); !reserved) return reserved;
  const Finally unreserve([&] { static_cast<void>(api.unreserve.status(at, bytes)); });
  if (auto mapped = map(at, bytes, allocation); !mapped) return mapped;
  const Finally unmap([&] { static_cast<void>(api.unmap.status(at, bytes)); });
  cuda::Stream stream = nullptr;
  if (auto made = api.stream_create(&stream, cuda::kStreamNonBlocking, 0); !made) return made;
  const Finally destroy([&] { static_cast<void>(api.stream_destroy.status(stream)); });
  if (auto begun = api.set_bytes(at, 0, bytes, stream); !begun) return begun;
  return api.stream_synchronize(stream);
}

Result<Fd> CudaDevice::create_segment(std::uint64_t bytes) const {
  TERRACE_CHECK(bytes > 0 && bytes % kSegmentUnit == 0);
  if (const auto lost = context_->lost()) return std::unexpected(*lost);
  const cuda::Api& api = context_->api();
  const cuda::AllocationProperties wanted = properties();
  cuda::Allocation allocation = 0;
  if (auto made = context_->noted(api.create(&allocation, bytes, &wanted, 0)); !made) {
    if (made.error().code != ErrorCode::kResourceExhausted) return std::unexpected(std::move(made.error()));
    return std::unexpected(with_room(std::move(made.error()), bytes));
  }
  // The descriptor keeps it from here on.
  const Finally release([&] { static_cast<void>(api.release.status(allocation)); });
  if (auto zeroed = context_->noted(zero(allocation, bytes)); !zeroed)
    return std::unexpected(std::move(zeroed.error()));
  int fd = -1;
  if (auto exported = context_->noted(api.export_handle(&fd, allocation, cuda::kHandlePosixDescriptor, 0)); !exported)
    return std::unexpected(std::move(exported.error()));
  return Fd(fd);
}

Result<void> CudaDevice::install(SessionId session, Extent extent, Fd segment) {
  Result<void> added = add(session, extent, std::move(segment));
  if (const auto cause = context_->cause(); !added && cause) return std::unexpected(*cause);
  return added;
}

Result<void> CudaDevice::add(SessionId session, Extent extent, Fd segment) {
  TERRACE_CHECK(segment && extent.bytes > 0 && extent.offset % kSegmentUnit == 0 && extent.bytes % kSegmentUnit == 0);
  TERRACE_CHECK(extent.offset <= capacity_bytes_ && extent.bytes <= capacity_bytes_ - extent.offset);
  if (const auto lost = context_->cause()) return std::unexpected(*lost);
  const cuda::Api& api = context_->api();
  const std::lock_guard lock(mutex_);
  const auto found = spaces_.find(session);
  cuda::Pointer base = found == spaces_.end() ? 0 : found->second.base;
  if (found == spaces_.end()) {
    if (auto reserved = context_->noted(api.reserve(&base, capacity_bytes_, kSegmentUnit, 0, 0)); !reserved)
      return reserved;
  }
  Space& space = spaces_[session];
  space.base = base;
  TERRACE_CHECK(space.segments.empty() ||
                std::prev(space.segments.end())->first + std::prev(space.segments.end())->second.bytes <=
                    extent.offset);
  cuda::Allocation allocation = 0;
  auto* handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(segment.get()));
  if (auto imported = context_->noted(api.import_handle(&allocation, handle, cuda::kHandlePosixDescriptor)); !imported)
    return imported;
  const Finally release([&] { static_cast<void>(api.release.status(allocation)); });
  if (auto mapped = context_->noted(map(base + extent.offset, extent.bytes, allocation)); !mapped) return mapped;
  space.segments.emplace(extent.offset, Segment{.bytes = extent.bytes, .fd = std::move(segment)});
  return {};
}

int CudaDevice::descriptor(SessionId session, std::uint64_t offset) const {
  const std::lock_guard lock(mutex_);
  const auto space = spaces_.find(session);
  TERRACE_CHECK(space != spaces_.end());
  const auto found = space->second.segments.find(offset);
  TERRACE_CHECK(found != space->second.segments.end());
  return found->second.fd.get();
}

Result<void> CudaDevice::remove(SessionId session, Extent extent) {
  const std::lock_guard lock(mutex_);
  const auto found = spaces_.find(session);
  bool any = false;
  while (found != spaces_.end() && !found->second.segments.empty()) {
    const auto last = std::prev(found->second.segments.end());
    if (last->first < extent.offset || last->first + last->second.bytes > extent.end()) break;
    any = true;
    auto unmapped = context_->noted(context_->api().unmap(found->second.base + last->first, last->second.bytes));
    // A lost device's memory is gone in any case.
    if (!unmapped && unmapped.error().code != ErrorCode::kUnavailable) return unmapped;
    found->second.segments.erase(last);
  }
  if (any) return {};
  return fail(ErrorCode::kNotFound, fmt::format("session {} has no segment at its end within [{}, {})",
                                                static_cast<std::uint32_t>(session), extent.offset, extent.end()));
}

void CudaDevice::give_back(Space& space) const {
  const cuda::Api& api = context_->api();
  for (const auto& [offset, segment] : space.segments)
    static_cast<void>(context_->noted(api.unmap(space.base + offset, segment.bytes)));
  static_cast<void>(context_->noted(api.unreserve(space.base, capacity_bytes_)));
}

void CudaDevice::drop(SessionId session) {
  const std::lock_guard lock(mutex_);
  auto leaving = spaces_.extract(session);
  if (!leaving.empty()) give_back(leaving.mapped());
}

std::byte* CudaDevice::address(SessionId session, std::uint64_t offset) const {
  const std::lock_guard lock(mutex_);
  const auto space = spaces_.find(session);
  TERRACE_CHECK(space != spaces_.end() && offset < capacity_bytes_);
  return reinterpret_cast<std::byte*>(space->second.base + offset);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace terrace::tier
