// SPDX-License-Identifier: Apache-2.0
// The fake driver's entry points: memory of devices and of the host, and copies. A device's addresses are reserved and
// never readable: who touches one from the CPU is stopped, as on a GPU. Below each range of them lies one as large that
// mirrors it, where the kernels of tests reach the same memory.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gpu/fake_cuda/entry.h"

namespace terrace::fake_cuda {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;

bool whole(std::size_t bytes) { return bytes != 0 && bytes % kGranularity == 0; }
bool aligned(cuda::Pointer address) { return address % kGranularity == 0; }

// Of the memory that this driver makes: pinned, on a device, exported as a descriptor or not at all.
Status check_properties(const cuda::AllocationProperties& wanted) {
  const bool known = wanted.type == cuda::kAllocationPinned && wanted.location.type == cuda::kLocationDevice &&
                     (wanted.handle_types == 0 || wanted.handle_types == cuda::kHandlePosixDescriptor);
  const bool plain = wanted.win32 == nullptr && wanted.compression == 0 && wanted.usage == 0 &&
                     wanted.reserved == decltype(wanted.reserved){};
  if (!known || !plain) return cuda::kInvalidValue;
  return is_visible(wanted.location.id) ? cuda::kSuccess : cuda::kInvalidDevice;
}

Status check_access(const cuda::AccessDescription& wanted) {
  const bool known = wanted.flags == kNoAccess || wanted.flags == kReadAccess || wanted.flags == cuda::kAccessReadWrite;
  if (!known || wanted.location.type != cuda::kLocationDevice) return cuda::kInvalidValue;
  return is_visible(wanted.location.id) ? cuda::kSuccess : cuda::kInvalidDevice;
}

// A range of addresses behind its mirror.
std::byte* reserve(std::size_t bytes, std::size_t alignment = kGranularity) {
  const std::size_t whole = 2 * bytes + alignment;
  void* found = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(found);
  const std::size_t beyond = (reinterpret_cast<std::uintptr_t>(start) + bytes) % alignment;
  const std::size_t before = beyond == 0 ? 0 : alignment - beyond;
  if (before != 0) ::munmap(start, before);
  ::munmap(start + before + 2 * bytes, alignment - before);
  return start + before + bytes;
}

void unreserve(cuda::Pointer range, std::size_t bytes) { ::munmap(reinterpret_cast<void*>(range - bytes), 2 * bytes); }

// The range that has an address, of the driver's own or of a cuMemAlloc: where it starts, and its bytes.
std::optional<std::pair<cuda::Pointer, std::size_t>> range_of(cuda::Pointer address) {
  for (const auto* ranges : {&state().ranges, &state().allocations}) {
    const auto next = ranges->upper_bound(address);
    if (next != ranges->begin() && address < std::prev(next)->first + std::prev(next)->second) return *std::prev(next);
  }
  return std::nullopt;
}

// Has the mirror of mapped addresses show the memory, or (null) nothing any more.
bool reflect(cuda::Pointer at, std::size_t bytes, const Memory* memory) {
  const auto range = range_of(at);
  if (!range) return false;
  const int protection = memory != nullptr ? PROT_READ | PROT_WRITE : PROT_NONE;
  const int flags = MAP_FIXED | (memory != nullptr ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  void* const mirror = reinterpret_cast<void*>(at - range->second);
  return ::mmap(mirror, bytes, protection, flags, memory != nullptr ? memory->fd : -1, 0) != MAP_FAILED;
}

cuda::Pointer number(const std::byte* address) { return reinterpret_cast<std::uintptr_t>(address); }

Status insert(cuda::Pointer at, std::size_t bytes, std::shared_ptr<Memory> memory, int access) {
  const std::lock_guard lock(state().mutex);
  const auto next = state().mappings.lower_bound(at);
  if (next != state().mappings.end() && next->first < at + bytes) return cuda::kInvalidValue;
  if (next != state().mappings.begin() && std::prev(next)->first + std::prev(next)->second.bytes > at)
    return cuda::kInvalidValue;
  if (!reflect(at, bytes, memory.get())) return cuda::kOutOfMemory;
  state().mappings.emplace(at, Mapping{std::move(memory), bytes, access});
  control().mappings.fetch_add(1);
  return 0;
}

std::shared_ptr<Memory> make(int device, std::size_t bytes) {
  if (control().used_bytes[static_cast<std::size_t>(device)].load() + bytes > capacity_of(device)) return nullptr;
  return Memory::create(device, bytes);
}

cuda::Allocation hand_out(std::shared_ptr<Memory> memory) {
  const std::lock_guard lock(state().mutex);
  state().handles.emplace(++state().last_handle, std::move(memory));
  return state().last_handle;
}

std::shared_ptr<Memory> held(cuda::Allocation handle) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().handles.find(handle);
  return found == state().handles.end() ? nullptr : found->second;
}

// Moves bytes between a device's pieces and plain memory, as the stream's thread.
Status carry(cuda::Pointer address, std::size_t bytes, int access,
             const std::function<void(std::byte*, std::size_t)>& each) {
  Status failed = 0;
  if (strikes(control().copies, failed)) return failed;
  return pieces(address, bytes, access, each) ? 0 : cuda::kIllegalAddress;
}

Status check_device_range(cuda::Pointer address, std::size_t bytes, int access) {
  return pieces(address, bytes, access, [](std::byte*, std::size_t) {}) ? 0 : cuda::kInvalidValue;
}

}  // namespace

std::byte* mirror_of(cuda::Pointer address) {
  const std::lock_guard lock(state().mutex);
  const auto range = range_of(address);
  return range ? reinterpret_cast<std::byte*>(address - range->second) : nullptr;
}

std::optional<int> device_at(cuda::Pointer address) {
  const std::lock_guard lock(state().mutex);
  const auto next = state().mappings.upper_bound(address);
  if (next == state().mappings.begin() || address >= std::prev(next)->first + std::prev(next)->second.bytes)
    return std::nullopt;
  return std::prev(next)->second.memory->device;
}

extern "C" {

Status cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  if (current() == nullptr) return cuda::kInvalidContext;
  const int device = device_of(current());
  *total = capacity_of(device);
  *free = *total - control().used_bytes[static_cast<std::size_t>(device)].load();
  return broken(device);
}

Status cuMemAlloc_v2(cuda::Pointer* pointer, std::size_t bytes) {
  if (current() == nullptr) return cuda::kInvalidContext;
  if (const Status refused = prohibited()) return refused;
  if (const Status ended = broken(device_of(current()))) return ended;
  const std::size_t rounded = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  auto memory = make(device_of(current()), rounded);
  std::byte* range = memory == nullptr ? nullptr : reserve(rounded);
  if (range == nullptr) return cuda::kOutOfMemory;
  *pointer = number(range);
  {
    const std::lock_guard lock(state().mutex);
    state().allocations.emplace(*pointer, rounded);
  }
  return insert(*pointer, rounded, std::move(memory), cuda::kAccessReadWrite);
}

Status cuMemFree_v2(cuda::Pointer pointer) {
  if (const Status refused = prohibited()) return refused;
  const std::lock_guard lock(state().mutex);
  const auto found = state().allocations.find(pointer);
  if (found == state().allocations.end()) return cuda::kInvalidValue;
  state().mappings.erase(pointer);
  control().mappings.fetch_sub(1);
  unreserve(pointer, found->second);
  state().allocations.erase(found);
  return 0;
}

Status cuMemGetAllocationGranularity(std::size_t* granularity, const cuda::AllocationProperties* properties,
                                     int option) {
  if (option < cuda::kGranularityMinimum || option > cuda::kGranularityMinimum + 1) return cuda::kInvalidValue;
  if (const Status wrong = check_properties(*properties)) return wrong;
  *granularity = kGranularity;
  return 0;
}

Status cuMemCreate(cuda::Allocation* handle, std::size_t bytes, const cuda::AllocationProperties* properties,
                   cuda::Flags64 flags) {
  if (const Status wrong = check_properties(*properties)) return wrong;
  if (const Status failed = begin(Call::kCreate, properties->location.id)) return failed;
  if (!whole(bytes) || flags != 0) return cuda::kInvalidValue;
  auto memory = make(properties->location.id, bytes);
  if (memory == nullptr) return cuda::kOutOfMemory;
  *handle = hand_out(std::move(memory));
  return 0;
}

Status cuMemRelease(cuda::Allocation handle) {
  const std::lock_guard lock(state().mutex);
  return state().handles.erase(handle) == 1 ? 0 : cuda::kInvalidValue;
}

Status cuMemExportToShareableHandle(void* target, cuda::Allocation handle, int type, cuda::Flags64 flags) {
  if (const Status failed = begin(Call::kExport)) return failed;
  const auto memory = held(handle);
  if (memory == nullptr || flags != 0 || type != cuda::kHandlePosixDescriptor) return cuda::kInvalidValue;
  const int fd = ::fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return cuda::kOperatingSystem;
  std::memcpy(target, &fd, sizeof fd);
  return 0;
}

Status cuMemImportFromShareableHandle(cuda::Allocation* handle, void* source, int type) {
  if (const Status failed = begin(Call::kImport)) return failed;
  const int fd = static_cast<int>(reinterpret_cast<std::intptr_t>(source));
  if (type != cuda::kHandlePosixDescriptor) return cuda::kInvalidValue;
  auto memory = Memory::import(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (memory == nullptr) return cuda::kInvalidValue;
  *handle = hand_out(std::move(memory));
  return 0;
}

Status cuMemAddressReserve(cuda::Pointer* pointer, std::size_t bytes, std::size_t alignment, cuda::Pointer wished,
                           cuda::Flags64 flags) {
  if (const Status failed = begin(Call::kReserve)) return failed;
  if (!whole(bytes) || (alignment & (alignment - 1)) != 0 || !aligned(wished) || flags != 0) return cuda::kInvalidValue;
  std::byte* range = reserve(bytes, std::max(alignment, kGranularity));
  if (range == nullptr) return cuda::kOutOfMemory;
  const std::lock_guard lock(state().mutex);
  state().ranges.emplace(number(range), bytes);
  *pointer = number(range);
  return 0;
}

Status cuMemAddressFree(cuda::Pointer pointer, std::size_t bytes) {
  if (const Status failed = begin(Call::kUnreserve)) return failed;
  const std::lock_guard lock(state().mutex);
  const auto found = state().ranges.find(pointer);
  if (found == state().ranges.end() || found->second != bytes) return cuda::kInvalidValue;
  const auto mapped = state().mappings.lower_bound(pointer);
  if (mapped != state().mappings.end() && mapped->first < pointer + bytes) return cuda::kInvalidValue;
  unreserve(pointer, bytes);
  state().ranges.erase(found);
  return 0;
}

Status cuMemMap(cuda::Pointer at, std::size_t bytes, std::size_t offset, cuda::Allocation handle, cuda::Flags64 flags) {
  if (const Status failed = begin(Call::kMap)) return failed;
  if (!aligned(at) || flags != 0) return cuda::kInvalidValue;
  auto memory = held(handle);
  if (memory == nullptr || offset != 0 || !whole(bytes) || bytes != memory->bytes) return cuda::kInvalidValue;
  {
    const std::lock_guard lock(state().mutex);
    auto range = state().ranges.upper_bound(at);
    if (range == state().ranges.begin()) return cuda::kInvalidValue;
    --range;
    if (at + bytes > range->first + range->second) return cuda::kInvalidValue;
  }
  return insert(at, bytes, std::move(memory), kNoAccess);
}

// Whole mappings alone, as the driver has it.
Status cuMemUnmap(cuda::Pointer at, std::size_t bytes) {
  if (const Status failed = begin(Call::kUnmap)) return failed;
  const std::lock_guard lock(state().mutex);
  std::vector<cuda::Pointer> leaving;
  cuda::Pointer end = at;
  for (auto found = state().mappings.find(at); found != state().mappings.end() && end < at + bytes; ++found) {
    if (found->first != end) return cuda::kInvalidValue;
    leaving.push_back(found->first);
    end += found->second.bytes;
  }
  if (end != at + bytes) return cuda::kInvalidValue;
  for (const cuda::Pointer each : leaving) {
    reflect(each, state().mappings.at(each).bytes, nullptr);
    state().mappings.erase(each);
  }
  control().mappings.fetch_sub(static_cast<std::uint32_t>(leaving.size()));
  return 0;
}

Status cuMemSetAccess(cuda::Pointer at, std::size_t bytes, const cuda::AccessDescription* access, std::size_t count) {
  if (const Status failed = begin(Call::kSetAccess)) return failed;
  if (!whole(bytes) || count == 0) return cuda::kInvalidValue;
  const std::span wanted(access, count);
  for (const cuda::AccessDescription& each : wanted)
    if (const Status wrong = check_access(each)) return wrong;
  const std::lock_guard lock(state().mutex);
  cuda::Pointer end = at;
  std::vector<Mapping*> whole_mappings;
  for (auto found = state().mappings.find(at); found != state().mappings.end() && end < at + bytes; ++found) {
    if (found->first != end) return cuda::kInvalidValue;
    whole_mappings.push_back(&found->second);
    end += found->second.bytes;
  }
  if (end != at + bytes) return cuda::kInvalidValue;
  for (Mapping* const mapping : whole_mappings)
    for (const cuda::AccessDescription& each : wanted)
      if (each.location.id == mapping->memory->device) mapping->access = each.flags;
  return 0;
}

Status cuMemcpyHtoDAsync_v2(cuda::Pointer to, const void* from, std::size_t bytes, cuda::Stream stream) {
  StreamState* found = stream_of(stream);
  if (found == nullptr) return cuda::kInvalidContext;
  if (const Status failed = begin(Call::kCopyUp, device_of(found->context()))) return failed;
  const Pinning pinned = pinning(from, bytes);
  if (pinned == Pinning::kBroken) return cuda::kInvalidValue;
  if (const Status wrong = check_device_range(to, bytes, cuda::kAccessReadWrite)) return wrong;
  const auto* source = static_cast<const std::byte*>(from);
  std::shared_ptr<std::vector<std::byte>> staged;
  if (pinned == Pinning::kNone) {  // the driver copies pageable memory before it returns
    control().pageable_copies.fetch_add(1);
    staged = std::make_shared<std::vector<std::byte>>(source, source + bytes);
    source = staged->data();
  }
  found->push([to, source, bytes, staged](Status before) {
    if (before != 0) return before;
    const std::byte* at = source;
    const Status status = carry(to, bytes, cuda::kAccessReadWrite, [&at](std::byte* piece, std::size_t size) {
      std::memcpy(piece, at, size);
      at += size;
    });
    if (status == 0) control().copied_up_bytes.fetch_add(bytes);
    return status;
  });
  return 0;
}

Status cuMemcpyDtoHAsync_v2(void* to, cuda::Pointer from, std::size_t bytes, cuda::Stream stream) {
  StreamState* found = stream_of(stream);
  if (found == nullptr) return cuda::kInvalidContext;
  if (const Status failed = begin(Call::kCopyDown, device_of(found->context()))) return failed;
  const Pinning pinned = pinning(to, bytes);
  if (pinned == Pinning::kBroken) return cuda::kInvalidValue;
  if (const Status wrong = check_device_range(from, bytes, kReadAccess)) return wrong;
  found->push([to, from, bytes](Status before) {
    if (before != 0) return before;
    auto* at = static_cast<std::byte*>(to);
    const Status status = carry(from, bytes, kReadAccess, [&at](std::byte* piece, std::size_t size) {
      std::memcpy(at, piece, size);
      at += size;
    });
    if (status == 0) control().copied_down_bytes.fetch_add(bytes);
    return status;
  });
  if (pinned == Pinning::kNone) {
    control().pageable_copies.fetch_add(1);
    found->drain();
  }
  return 0;
}

// Overlapping ranges are undefined on a device; here they are refused.
Status cuMemcpyDtoDAsync_v2(cuda::Pointer to, cuda::Pointer from, std::size_t bytes, cuda::Stream stream) {
  StreamState* found = stream_of(stream);
  if (found == nullptr) return cuda::kInvalidContext;
  if (const Status failed = begin(Call::kCopyWithin, device_of(found->context()))) return failed;
  if (from < to + bytes && to < from + bytes) return cuda::kInvalidValue;
  if (check_device_range(to, bytes, cuda::kAccessReadWrite) != 0 || check_device_range(from, bytes, kReadAccess) != 0)
    return cuda::kInvalidValue;
  found->push([to, from, bytes](Status before) {
    if (before != 0) return before;
    std::vector<std::byte> between;
    const Status read = carry(from, bytes, kReadAccess, [&between](std::byte* piece, std::size_t size) {
      between.insert(between.end(), piece, piece + size);
    });
    if (read != 0) return read;
    const std::byte* at = between.data();
    return carry(to, bytes, cuda::kAccessReadWrite, [&at](std::byte* piece, std::size_t size) {
      std::memcpy(piece, at, size);
      at += size;
    });
  });
  return 0;
}

Status cuMemsetD8Async(cuda::Pointer to, unsigned char value, std::size_t bytes, cuda::Stream stream) {
  StreamState* found = stream_of(stream);
  if (found == nullptr) return cuda::kInvalidContext;
  if (const Status failed = begin(Call::kSet, device_of(found->context()))) return failed;
  if (const Status wrong = check_device_range(to, bytes, cuda::kAccessReadWrite)) return wrong;
  found->push([to, value, bytes](Status before) {
    if (before != 0) return before;
    return carry(to, bytes, cuda::kAccessReadWrite,
                 [value](std::byte* piece, std::size_t size) { std::memset(piece, value, size); });
  });
  return 0;
}

}  // extern "C"

}  // namespace terrace::fake_cuda
