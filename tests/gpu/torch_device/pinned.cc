// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "gpu/torch_device/driver.h"
#include "gpu/torch_device/memory.h"
#include "gpu/torch_device/runtime.h"

namespace terrace::torch_device {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kGone = 0xFF;

class PinnedMemory final : public at::HostAllocator {
 public:
  static PinnedMemory& the() {
    static auto* const made = new PinnedMemory;
    return *made;
  }

  c10::DataPtr allocate(std::size_t asked) override {
    if (asked == 0) return {nullptr, nullptr, &drop, c10::Device(c10::kCPU)};
    const std::size_t bytes = (asked + kPageBytes - 1) / kPageBytes * kPageBytes;
    auto* const at = static_cast<char*>(std::aligned_alloc(kPageBytes, bytes));
    TORCH_CHECK(at != nullptr, "no memory for ", bytes, " bytes to be pinned");
    const WithContext with(current_device());
    check(cuMemHostRegister_v2(at, bytes, 0), "cuMemHostRegister");
    const std::lock_guard lock(mutex_);
    look();
    live_[at] = {.bytes = bytes, .marks = {}};
    return {at, at, &drop, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool record_event(void* address, void* /*context*/, c10::Stream stream) override { return note(address, stream); }
  void empty_cache() override {
    const std::lock_guard lock(mutex_);
    look();
  }
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

  bool note(const void* address, const c10::Stream& stream) {
    const std::lock_guard lock(mutex_);
    const auto next = live_.upper_bound(static_cast<const char*>(address));
    if (next == live_.begin() || address >= std::prev(next)->first + std::prev(next)->second.bytes) return false;
    std::prev(next)->second.marks.emplace_back(stream);
    return true;
  }

 private:
  struct Pinned {
    std::size_t bytes = 0;
    std::vector<Mark> marks;
  };

  static void drop(void* context) {
    if (context == nullptr) return;
    PinnedMemory& all = the();
    const std::lock_guard lock(all.mutex_);
    all.waiting_.push_back(all.live_.extract(static_cast<const char*>(context)));
    all.look();
  }

  void look() {
    std::erase_if(waiting_, [](const auto& each) {
      for (const Mark& mark : each.mapped().marks)
        if (!mark.passed()) return false;
      auto* const at = const_cast<char*>(each.key());
      const WithContext with(0);
      check(cuMemHostUnregister(at), "cuMemHostUnregister");
      std::memset(at, kGone, each.mapped().bytes);
      std::free(at);
      return true;
    });
  }

  std::mutex mutex_;
  std::map<const char*, Pinned> live_;
  std::vector<std::map<const char*, Pinned>::node_type> waiting_;
};

}  // namespace

c10::Allocator& pinned_memory() { return PinnedMemory::the(); }
bool is_pinned(const void* address) { return fake_cuda::pinning(address, 1) == fake_cuda::Pinning::kWhole; }
void note_copy(const void* pinned, const c10::Stream& stream) { PinnedMemory::the().note(pinned, stream); }

void release_free() {
  device_memory().emptyCache();
  PinnedMemory::the().empty_cache();
}

}  // namespace terrace::torch_device
