// SPDX-License-Identifier: Apache-2.0
// The fake driver's entry points: which memory of the host is registered.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>

#include "gpu/fake_cuda/entry.h"

namespace terrace::fake_cuda {
namespace {

constexpr unsigned kRegisterFlags = 0b1111;  // portable, mapped, of a device, read-only

// Whether the process may read, and `write`, all of it.
bool may_use(const void* address, std::size_t bytes, bool write) {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = at + bytes;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; at < end && std::getline(maps, line);) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    char readable = '-';
    char writable = '-';
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %c%c", &first, &last, &readable, &writable) != 4) continue;
    if (first <= at && at < last && readable == 'r' && (!write || writable == 'w')) at = last;
  }
  return at >= end;
}

void stand_still() {
  control().registering.fetch_add(1);
  while (control().hold_registering != 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
  control().registering.fetch_sub(1);
}

}  // namespace

Pinning pinning(const void* address, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(address);
  const std::byte* const end = first + bytes;
  const std::lock_guard lock(state().mutex);
  const auto next = state().registered.upper_bound(first);
  if (next != state().registered.begin()) {
    const auto& [memory, size] = *std::prev(next);
    if (end <= memory + size) return Pinning::kWhole;
    if (first < memory + size) return Pinning::kBroken;
  }
  return next != state().registered.end() && next->first < end ? Pinning::kBroken : Pinning::kNone;
}

extern "C" {

Status cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned flags) {
  if (const Status failed = begin(Call::kHostRegister)) return failed;
  if (current() == nullptr) return cuda::kInvalidContext;
  if (bytes == 0 || (flags & ~kRegisterFlags) != 0) return cuda::kInvalidValue;
  // What may not be written is taken by a flag of its own alone.
  if (!may_use(address, bytes, (flags & cuda::kHostRegisterReadOnly) == 0)) return cuda::kInvalidValue;
  stand_still();
  if (pinning(address, bytes) != Pinning::kNone) return cuda::kHostMemoryAlreadyRegistered;
  const std::lock_guard lock(state().mutex);
  state().registered.emplace(static_cast<std::byte*>(address), bytes);
  control().registered_bytes.fetch_add(bytes);
  return 0;
}

Status cuMemHostUnregister(void* address) {
  if (const Status failed = begin(Call::kHostUnregister)) return failed;
  if (current() == nullptr) return cuda::kInvalidContext;
  const std::lock_guard lock(state().mutex);
  const auto found = state().registered.find(static_cast<std::byte*>(address));
  if (found == state().registered.end()) return cuda::kHostMemoryNotRegistered;
  control().registered_bytes.fetch_sub(found->second);
  state().registered.erase(found);
  return 0;
}

}  // extern "C"

}  // namespace terrace::fake_cuda
