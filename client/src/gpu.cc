// SPDX-License-Identifier: Apache-2.0
#include "gpu.h"

#include <string>
#include <utility>

namespace terrace::client {
namespace {

constexpr std::uint64_t kAlignmentBytes = 2ull << 20;

cuda::Pointer number(const std::byte* address) { return reinterpret_cast<std::uintptr_t>(address); }

}  // namespace

Result<std::shared_ptr<Gpu>> Gpu::open(const cuda::Api& api, int ordinal) {
  std::shared_ptr<Gpu> gpu(new Gpu(api, ordinal));
  const cuda::Relaxed relaxed(api);
  if (auto done = api.device(&gpu->device_, ordinal); !done) return std::unexpected(done.error());
  if (auto done = api.primary_retain(&gpu->context_, gpu->device_); !done) return std::unexpected(done.error());
  return gpu;
}

Result<std::shared_ptr<Gpu>> Gpu::find(const std::array<std::uint8_t, 16>& uuid) {
  const Result<int> ordinal = ordinal_of(uuid);
  if (!ordinal) return std::unexpected(ordinal.error());
  return open(*cuda::loaded(), *ordinal);
}

Result<int> Gpu::ordinal_of(const std::array<std::uint8_t, 16>& uuid) {
  const Result<const cuda::Api*> loaded = cuda::load();
  if (!loaded) return std::unexpected(loaded.error());
  const cuda::Api& api = **loaded;
  int count = 0;
  if (auto counted = api.device_count(&count); !counted) return std::unexpected(counted.error());
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::Device device = 0;
    cuda::Uuid found{};
    if (api.device(&device, ordinal) && api.device_uuid(&found, device) && found == uuid) return ordinal;
  }
  return fail(ErrorCode::kFailedPrecondition,
              "the GPU of this place is none of the " + std::to_string(count) +
                  " that this process can see: let CUDA_VISIBLE_DEVICES name it, or lease in another place");
}

std::shared_ptr<Gpu> Gpu::in_use() {
  const cuda::Api* const api = cuda::loaded();
  int count = 0;
  if (api == nullptr || !api->device_count(&count)) return nullptr;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cuda::Device device = 0;
    unsigned flags = 0;
    int active = 0;
    if (!api->device(&device, ordinal) || !api->primary_state(device, &flags, &active) || active == 0) continue;
    if (auto gpu = open(*api, ordinal)) return *gpu;
  }
  return nullptr;
}

Gpu::~Gpu() {
  if (context_ != nullptr) static_cast<void>(api_.primary_release.status(device_));
}

Result<std::byte*> Gpu::reserve(std::uint64_t bytes) const {
  const cuda::Relaxed relaxed(api_);
  cuda::Pointer found = 0;
  if (auto reserved = api_.reserve(&found, bytes, kAlignmentBytes, 0, 0); !reserved)
    return std::unexpected(reserved.error());
  return reinterpret_cast<std::byte*>(found);  // NOLINT(performance-no-int-to-ptr)
}

void Gpu::give_back(std::byte* range, std::uint64_t bytes) const {
  const cuda::Relaxed relaxed(api_);
  static_cast<void>(api_.unreserve.status(number(range), bytes));
}

Result<void> Gpu::map(std::byte* at, std::uint64_t bytes, int fd) const {
  const cuda::Relaxed relaxed(api_);
  const cuda::Current current(api_, context_);
  if (!current.result()) return current.result();
  cuda::Allocation segment = 0;
  auto* handle = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));  // NOLINT(performance-no-int-to-ptr)
  if (auto done = api_.import_handle(&segment, handle, cuda::kHandlePosixDescriptor); !done) return done;
  auto mapped = api_.map(number(at), bytes, 0, segment, 0);
  static_cast<void>(api_.release.status(segment));  // the mapping keeps it
  if (!mapped) return mapped;
  cuda::AccessDescription access;
  access.location.id = device_;
  auto allowed = api_.set_access(number(at), bytes, &access, 1);
  if (!allowed) static_cast<void>(api_.unmap.status(number(at), bytes));
  return allowed;
}

Result<void> Gpu::unmap(std::byte* at, std::uint64_t bytes) const {
  const cuda::Relaxed relaxed(api_);
  return api_.unmap(number(at), bytes);
}

bool Gpu::pin(std::byte* memory, std::uint64_t bytes, bool read_only) const {
  const cuda::Relaxed relaxed(api_);
  const cuda::Current current(api_, context_);
  const unsigned flags = cuda::kHostRegisterPortable | (read_only ? cuda::kHostRegisterReadOnly : 0u);
  return current.result() && api_.host_register.status(memory, bytes, flags) == cuda::kSuccess;
}

void Gpu::unpin(std::byte* memory) const {
  const cuda::Relaxed relaxed(api_);
  const cuda::Current current(api_, context_);
  if (current.result()) static_cast<void>(api_.host_unregister.status(memory));
}

bool Gpu::pins_read_only() const {
  int can = 0;
  return api_.device_attribute.status(&can, cuda::kAttributeReadOnlyHostRegister, device_) == cuda::kSuccess &&
         can != 0;
}

}  // namespace terrace::client
