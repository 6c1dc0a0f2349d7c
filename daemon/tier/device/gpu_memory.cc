// SPDX-License-Identifier: Apache-2.0
#include "tier/device/gpu_memory.h"

#include <dlfcn.h>

#include <cstdlib>

namespace terrace::tier {
namespace {

// As in NVML's reference manual, "Device Queries"; 0 is success.
using Status = int;
using Device = void*;
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

class Library {
 public:
  Library() {
    const char* named = std::getenv("TERRACE_NVML_LIBRARY");
    handle_ = ::dlopen(named != nullptr ? named : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto init = entry<Status()>("nvmlInit_v2");
    initialized_ = init != nullptr && init() == 0;
  }
  ~Library() {
    if (const auto shutdown = entry<Status()>("nvmlShutdown"); initialized_ && shutdown != nullptr) shutdown();
    if (handle_ != nullptr) ::dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  std::optional<std::uint64_t> used(const char* pci_bus_id) const {
    const auto find = entry<Status(const char*, Device*)>("nvmlDeviceGetHandleByPciBusId_v2");
    const auto look = entry<Status(Device, Memory*)>("nvmlDeviceGetMemoryInfo");
    if (!initialized_ || find == nullptr || look == nullptr) return std::nullopt;
    Device device = nullptr;
    Memory memory{};
    if (find(pci_bus_id, &device) != 0 || look(device, &memory) != 0) return std::nullopt;
    return memory.used;
  }

 private:
  template <typename Function>
  Function* entry(const char* name) const {
    return handle_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

  void* handle_ = nullptr;
  bool initialized_ = false;
};

}  // namespace

std::optional<std::uint64_t> used_gpu_bytes(const std::string& pci_bus_id) {
  return Library().used(pci_bus_id.c_str());
}

}  // namespace terrace::tier
