// SPDX-License-Identifier: Apache-2.0
// HBM under the conformance suite: of the fake driver, or, where TERRACE_CUDA_LIBRARY names one, of a real one.
#include <cstdlib>
#include <stdexcept>

#include "conformance/rig_device.h"
#include "gpu/on_fake.h"
#include "tier/device/cuda_device.h"

namespace terrace::conformance {
namespace {

void must(const Result<void>& result) {
  if (!result) throw std::runtime_error(result.error().message);
}

bool is_fake() { return std::getenv("TERRACE_CUDA_LIBRARY") == nullptr; }

const cuda::Api& api() {
  const Result<const cuda::Api*> found = is_fake() ? cuda::load(FAKE_CUDA) : cuda::load();
  if (!found) throw std::runtime_error(found.error().message);
  return **found;
}

cuda::Pointer number(const std::byte* address) { return reinterpret_cast<std::uintptr_t>(address); }

class Gpu final : public RigDevice {
 public:
  explicit Gpu(std::uint64_t capacity_bytes) {
    if (is_fake()) {
      fake_cuda::mend(fake_cuda::in_process());
      before_ = fake_cuda::calls(fake_cuda::in_process());
    }
    auto context = tier::CudaContext::open(api(), 0);
    if (!context) throw std::runtime_error(context.error().message);
    context_ = std::move(*context);
    auto tier = tier::CudaDevice::create(context_, capacity_bytes);
    if (!tier) throw std::runtime_error(tier.error().message);
    tier_ = std::move(*tier);
  }
  ~Gpu() override {
    if (!is_fake()) return;
    const fake_cuda::Control& control = fake_cuda::in_process();
    EXPECT_GT(fake_cuda::calls(control), before_) << "the fake driver was not called";
    // Nothing but memory that was pinned goes to the engine's streams.
    EXPECT_EQ(control.pageable_copies.load(), own_copies_) << "the mover copied memory that is not pinned";
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  tier::MappedTier& tier() override { return *tier_; }
  void read(const std::byte* from, std::span<std::byte> to) override {
    ++own_copies_;
    const cuda::Current current(api(), context_->context());
    must(api().copy_down(to.data(), number(from), to.size(), nullptr));
    must(api().stream_synchronize(nullptr));
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    ++own_copies_;
    const cuda::Current current(api(), context_->context());
    must(api().copy_up(number(to), from.data(), from.size(), nullptr));
    must(api().stream_synchronize(nullptr));
  }

 private:
  std::shared_ptr<tier::CudaContext> context_;
  std::unique_ptr<tier::CudaDevice> tier_;
  std::uint64_t before_ = 0;
  std::uint64_t own_copies_ = is_fake() ? fake_cuda::in_process().pageable_copies.load() : 0;
};

}  // namespace

std::unique_ptr<RigDevice> make_rig_device(std::uint64_t capacity_bytes) {
  return std::make_unique<Gpu>(capacity_bytes);
}

}  // namespace terrace::conformance
