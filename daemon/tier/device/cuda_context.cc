// SPDX-License-Identifier: Apache-2.0
#include "tier/device/cuda_context.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "tier/device/gpu_memory.h"

namespace terrace::tier {

Result<std::shared_ptr<CudaContext>> CudaContext::open(const cuda::Api& api, int ordinal) {
  std::shared_ptr<CudaContext> made(new CudaContext(api, ordinal));
  Result<void> done = made->look();
  const std::optional<std::uint64_t> before = done ? used_gpu_bytes(made->pci_bus_id_) : std::nullopt;
  // Set before the context is made: a thread that waits for the device then sleeps.
  if (done) done = api.primary_set_flags(made->device_, cuda::kContextBlockingSync);
  if (done) done = api.primary_retain(&made->context_, made->device_);
  if (!done) return fail(done.error().code, fmt::format("cuda:{}: {}", ordinal, done.error().message));
  const std::optional<std::uint64_t> after = used_gpu_bytes(made->pci_bus_id_);
  if (before && after && *after > *before) made->own_bytes_ = *after - *before;
  return made;
}

CudaContext::~CudaContext() {
  if (context_ != nullptr) static_cast<void>(api_.primary_release.status(device_));
}

Result<void> CudaContext::require(int attribute, const char* what) const {
  int has = 0;
  if (auto asked = api_.device_attribute(&has, attribute, device_); !asked) return asked;
  if (has == 0)
    return fail(ErrorCode::kFailedPrecondition, fmt::format("{} cannot {}, which the device tier needs", name_, what));
  return {};
}

Result<void> CudaContext::look() {
  std::array<char, 256> text{};
  constexpr int kTextSize = static_cast<int>(text.size());
  if (auto done = api_.device(&device_, ordinal_); !done) return done;
  if (auto done = api_.device_name(text.data(), kTextSize, device_); !done) return done;
  name_ = text.data();
  if (auto done = api_.device_pci_bus_id(text.data(), kTextSize, device_); !done) return done;
  pci_bus_id_ = text.data();
  if (auto done = api_.device_uuid(&uuid_, device_); !done) return done;
  if (auto done = require(cuda::kAttributeVirtualMemory, "map memory at chosen addresses"); !done) return done;
  return require(cuda::kAttributePosixDescriptors, "export memory as descriptors");
}

Result<CudaContext::Room> CudaContext::room() const {
  const cuda::Current current(api_, context_);
  if (!current.result()) return std::unexpected(current.result().error());
  std::size_t free = 0;
  std::size_t total = 0;
  if (auto asked = api_.memory_info(&free, &total); !asked) return std::unexpected(std::move(asked.error()));
  return Room{.free_bytes = free, .total_bytes = total};
}

Result<void> CudaContext::noted(Result<void> result) {
  if (result) return result;
  const ErrorCode code = result.error().code;
  if (code != ErrorCode::kDataLoss && code != ErrorCode::kUnavailable) return result;
  Error error{code, fmt::format("cuda:{} ({}) is lost: {}", ordinal_, name_, result.error().message), 0};
  keep(error);
  error.code = ErrorCode::kUnavailable;
  return std::unexpected(std::move(error));
}

void CudaContext::give_up(const Error& why) {
  keep({why.code, fmt::format("cuda:{} ({}) cannot be used: {}", ordinal_, name_, why.message), 0});
}

// The first reason stands.
void CudaContext::keep(const Error& why) {
  const std::lock_guard lock(mutex_);
  if (!why_lost_) why_lost_ = why;
  is_lost_ = true;
}

std::optional<Error> CudaContext::lost() const {
  auto why = cause();
  if (why) why->code = ErrorCode::kUnavailable;
  return why;
}

std::optional<Error> CudaContext::cause() const {
  if (!is_lost_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return why_lost_;
}

}  // namespace terrace::tier
