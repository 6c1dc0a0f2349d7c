// SPDX-License-Identifier: Apache-2.0
#include "gpu/torch_device/memory.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "gpu/torch_device/driver.h"
#include "gpu/torch_device/runtime.h"

namespace terrace::torch_device {
namespace {

constexpr std::size_t kSegmentBytes = std::size_t{2} << 20;
constexpr std::size_t kSmallBytesMax = kSegmentBytes / 2;
constexpr std::size_t kUnitBytes = 512;
constexpr int kPoison = 0xFF;

struct Block {
  int device = 0;
  c10::StreamId stream = 0;
  std::size_t bytes = 0;
  void* address = nullptr;
  std::set<c10::StreamId> used_on;
};

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  static DeviceMemory& the() {
    static auto* const made = new DeviceMemory;
    return *made;
  }

  c10::DataPtr allocate(std::size_t asked) override {
    const int device = current_device();
    const c10::Device where(kKind, static_cast<c10::DeviceIndex>(device));
    check(device);
    if (asked == 0) return {nullptr, nullptr, &drop, where};
    Block* const block = take(device, current_stream(device).id(), asked);
    launch(stream_of(device, block->stream), "poison",
           [at = mirror_of(block->address), bytes = block->bytes] { std::memset(at, kPoison, bytes); });
    const std::lock_guard lock(mutex_);
    live_[block->address] = block;
    count(*block, true);
    return {block->address, block, &drop, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &drop; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    launch(current_stream(-1), "copy_data",
           [to = mirror_of(to), from = mirror_of(from), bytes] { std::memcpy(to, from, bytes); });
  }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(pointer.get());
    if (found != live_.end()) found->second->used_on.insert(stream.id());  // others' memory is not ours to keep
  }

  void emptyCache(c10::MempoolId_t /*pool*/ = {0, 0}) override {
    for (int device = 0; device < device_count(); ++device) synchronize_device(device);
    const std::lock_guard lock(mutex_);
    look();
    for (auto& [key, blocks] : free_) std::erase_if(blocks, [this](Block* each) { return give_back(each); });
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return stats_.at(resolved(device));
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    for (std::size_t kind : {0, 1}) {
      stats_.at(resolved(device)).allocated_bytes.at(kind).reset_peak();
      stats_.at(resolved(device)).reserved_bytes.at(kind).reset_peak();
    }
  }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const WithContext with(device);
    std::size_t free = 0;
    std::size_t total = 0;
    check(cuMemGetInfo_v2(&free, &total), "cuMemGetInfo");
    return {free, total};
  }

 private:
  struct Waiting {
    Block* block = nullptr;
    std::vector<Mark> marks;
  };
  struct Carved {
    char* at = nullptr;
    std::size_t left = 0;
  };

  static bool is_small(std::size_t bytes) { return bytes <= kSmallBytesMax; }

  static void drop(void* context) {
    auto* const block = static_cast<Block*>(context);
    if (block == nullptr) return;
    DeviceMemory& all = the();
    const std::lock_guard lock(all.mutex_);
    all.live_.erase(block->address);
    all.count(*block, false);
    block->used_on.erase(block->stream);
    Waiting waiting{.block = block, .marks = {}};
    for (const c10::StreamId id : block->used_on) waiting.marks.emplace_back(stream_of(block->device, id));
    block->used_on.clear();
    if (waiting.marks.empty())
      all.put(block);
    else
      all.waiting_.push_back(std::move(waiting));
  }

  void put(Block* block) { free_[{block->device, block->stream, block->bytes}].push_back(block); }

  // Whose marks have passed is free. Under the mutex, as all below but take().
  void look() {
    std::erase_if(waiting_, [this](const Waiting& each) {
      for (const Mark& mark : each.marks)
        if (!mark.passed()) return false;
      put(each.block);
      return true;
    });
  }

  Block* take(int device, c10::StreamId stream, std::size_t asked) {
    const std::size_t unit = is_small(asked) ? kUnitBytes : kSegmentBytes;
    const std::size_t bytes = (asked + unit - 1) / unit * unit;
    for (bool again : {true, false}) {
      {
        const std::lock_guard lock(mutex_);
        look();
        auto& blocks = free_[{device, stream, bytes}];
        if (!blocks.empty()) {
          Block* const block = blocks.back();
          blocks.pop_back();
          return block;
        }
        if (void* const at = is_small(bytes) ? carve(device, stream, bytes) : segment(device, bytes))
          return new Block{.device = device, .stream = stream, .bytes = bytes, .address = at, .used_on = {}};
      }
      if (again) emptyCache();
    }
    const auto [free, total] = getMemoryInfo(static_cast<c10::DeviceIndex>(device));
    TORCH_CHECK_WITH(OutOfMemoryError, false, "the test device is out of memory: ", asked, " bytes were asked for, ",
                     free, " of ", total, " are free");
  }

  void* segment(int device, std::size_t bytes) {
    const WithContext with(device);
    cuda::Pointer made = 0;
    cuda::CaptureMode mode = cuda::kCaptureRelaxed;  // as PyTorch's own allocator has it
    cuThreadExchangeStreamCaptureMode(&mode);
    const int status = cuMemAlloc_v2(&made, bytes);
    cuThreadExchangeStreamCaptureMode(&mode);
    if (status == cuda::kOutOfMemory) return nullptr;
    check(status, "cuMemAlloc");
    for (std::size_t kind : {0, 1}) stats_.at(device).reserved_bytes.at(kind).increase(bytes);
    return reinterpret_cast<void*>(made);
  }

  void* carve(int device, c10::StreamId stream, std::size_t bytes) {
    Carved& from = carved_[{device, stream}];
    if (from.left < bytes) {
      auto* const made = static_cast<char*>(segment(device, kSegmentBytes));
      if (made == nullptr) return nullptr;
      from = {.at = made, .left = kSegmentBytes};
    }
    from.left -= bytes;
    return std::exchange(from.at, from.at + bytes);
  }

  // What was carved stays.
  bool give_back(Block* block) {
    if (is_small(block->bytes)) return false;
    const WithContext with(block->device);
    check(cuMemFree_v2(reinterpret_cast<cuda::Pointer>(block->address)), "cuMemFree");
    for (std::size_t kind : {0, 1}) stats_.at(block->device).reserved_bytes.at(kind).decrease(block->bytes);
    delete block;
    return true;
  }

  void count(const Block& block, bool more) {
    for (std::size_t kind : {0, 1}) {
      auto& bytes = stats_.at(block.device).allocated_bytes.at(kind);
      auto& number = stats_.at(block.device).allocation.at(kind);
      if (more) {
        bytes.increase(block.bytes);
        number.increase(1);
      } else {
        bytes.decrease(block.bytes);
        number.decrease(1);
      }
    }
  }

  std::mutex mutex_;
  std::map<void*, Block*> live_;
  std::vector<Waiting> waiting_;
  std::map<std::tuple<int, c10::StreamId, std::size_t>, std::vector<Block*>> free_;
  std::map<std::pair<int, c10::StreamId>, Carved> carved_;
  std::array<c10::CachingDeviceAllocator::DeviceStats, fake_cuda::kDevicesMax> stats_;
};

}  // namespace

c10::DeviceAllocator& device_memory() { return DeviceMemory::the(); }

}  // namespace terrace::torch_device
