// SPDX-License-Identifier: Apache-2.0
#include "gpu/torch_device/backend.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cstring>

#include "gpu/torch_device/driver.h"
#include "gpu/torch_device/memory.h"
#include "gpu/torch_device/runtime.h"

namespace terrace::torch_device {
namespace {

c10::DeviceIndex index(int device) { return static_cast<c10::DeviceIndex>(device); }

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(int device)
      : c10::GeneratorImpl(c10::Device(kKind, index(device)), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(std::uint64_t seed) override { state_ = {seed, 0}; }
  std::uint64_t current_seed() const override { return state_[0]; }
  void set_offset(std::uint64_t offset) override { state_[1] = offset; }
  std::uint64_t get_offset() const override { return state_[1]; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return current_seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == sizeof state_ && state.is_cpu(), "a state has ", sizeof state_, " bytes, on the CPU");
    std::memcpy(state_.data(), state.data(), sizeof state_);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor made = at::empty({sizeof state_}, at::kByte);
    std::memcpy(made.data_ptr(), state_.data(), sizeof state_);
    return made.getIntrusivePtr();
  }
  static c10::DeviceType device_type() { return kKind; }

 private:
  Generator* clone_impl() const override {
    auto* const made = new Generator(device().index());
    made->state_ = state_;
    return made;
  }

  std::array<std::uint64_t, 2> state_{c10::detail::getNonDeterministicRandom(), 0};  // the seed, and the offset
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  c10::DeviceIndex deviceCount() const override { return index(device_count()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return index(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return index(exchange_device(device)); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return index(exchange_device(device));
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  at::Device getDeviceFromPtr(void* address) const override {
    const auto found = fake_cuda::device_at(reinterpret_cast<cuda::Pointer>(address));
    TORCH_CHECK(found, "no memory of a device is at ", address);
    for (int device = 0; device < device_count(); ++device)
      if (fake_cuda::physical(device) == *found) return {kKind, index(device)};
    TORCH_CHECK(false, "this process does not see the device of ", address);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(resolved(device));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl& resized = *storage.unsafeGetStorageImpl();
    const c10::DeviceGuard guard(resized.device());
    c10::DataPtr made = device_memory().allocate(bytes);
    if (const std::size_t kept = std::min(bytes, resized.nbytes()); kept > 0)
      device_memory().copy_data(made.get(), resized.data(), kept);
    resized.set_data_ptr_noswap(std::move(made));
    resized.set_nbytes(bytes);
  }
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType static_type = kKind;
  Guard() = default;
  explicit Guard(c10::DeviceType /*kind*/) {}

  c10::DeviceType type() const override { return kKind; }
  c10::DeviceIndex deviceCount() const noexcept override { return index(device_count()); }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kKind, index(exchange_device(device.index()))};
  }
  c10::Device getDevice() const override { return {kKind, index(current_device())}; }
  void setDevice(c10::Device device) const override { exchange_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchange_device(device.index()); }
  c10::DeviceCapability getDeviceCapability(c10::Device /*device*/) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device.index()); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device.index(), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    return new_stream(device.index());
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override { return new_stream(device.index()); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  bool queryStream(const c10::Stream& stream) const override {
    check(stream.device_index());
    return state_of(stream).drained();
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { synchronize_device(device); }
  bool isStreamCapturing(const c10::Stream& stream) const override { return state_of(stream).capturing; }
  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override {
    device_memory().recordStream(pointer, stream);
  }

  // An event that was recorded: null before.
  struct Recorded {
    Mark mark;
    c10::Stream stream;
  };
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    check(stream.device_index());
    destroyEvent(*event, -1);
    *event = new Recorded{.mark = Mark(stream), .stream = stream};
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Recorded*>(event);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) static_cast<Recorded*>(event)->mark.hold_back(stream);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    check(static_cast<Recorded*>(event)->stream.device_index());
    return static_cast<Recorded*>(event)->mark.passed();
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    static_cast<Recorded*>(event)->mark.wait();
    check(static_cast<Recorded*>(event)->stream.device_index());
  }
  double elapsedTime(void* /*from*/, void* /*to*/, const c10::DeviceIndex /*device*/) const override { return 1.0; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Registered {
  Registered() {
    c10::SetAllocator(kKind, &device_memory());
    at::setHostAllocator(kKind, static_cast<at::HostAllocator*>(&pinned_memory()));
    at::RegisterPrivateUse1HooksInterface(new Hooks);
  }
};
const Registered registered;

}  // namespace

const at::Generator& default_generator(int device) {
  static auto* const all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int each = 0; each < device_count(); ++each) made->push_back(at::make_generator<Generator>(each));
    return made;
  }();
  return all->at(resolved(device));
}

at::Generator generator_for_kernel(const at::Generator& of_device) {
  constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15;
  auto& device = *static_cast<Generator*>(of_device.unsafeGetGeneratorImpl());
  const std::lock_guard lock(device.mutex_);
  const std::uint64_t offset = device.get_offset();
  device.set_offset(offset + 1);
  return at::detail::createCPUGenerator(device.current_seed() * kSpread + offset);
}

}  // namespace terrace::torch_device
