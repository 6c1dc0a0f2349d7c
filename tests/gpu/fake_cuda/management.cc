// SPDX-License-Identifier: Apache-2.0
// The entry points of the management library (NVML) that the daemon asks: they say what of a device is taken, the
// contexts of this process included.
#include <array>
#include <cstdio>

#include "gpu/fake_cuda/state.h"

namespace terrace::fake_cuda {
namespace {

struct Device {
  int number = 0;
};

struct MemoryInfo {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

constexpr int kNotFound = 6;

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Device** device) {
  static std::array<Device, kDevicesMax> devices;
  unsigned bus = 0;
  if (std::sscanf(id, "0000:%02x:00.0", &bus) != 1 || bus == 0 || bus > kDevicesMax) return kNotFound;
  devices[bus - 1].number = static_cast<int>(bus) - 1;
  *device = &devices[bus - 1];
  return 0;
}

int nvmlDeviceGetMemoryInfo(const Device* device, MemoryInfo* memory) {
  const std::lock_guard lock(state().mutex);
  memory->total = capacity_of(device->number);
  memory->used = control().used_bytes[static_cast<std::size_t>(device->number)].load() +
                 (state().retained[device->number] > 0 ? kContextBytes : 0);
  memory->free = memory->total - memory->used;
  return 0;
}

}  // extern "C"

}  // namespace terrace::fake_cuda
