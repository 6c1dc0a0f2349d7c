// SPDX-License-Identifier: Apache-2.0
// Shows what the CUDA tier does beyond the contract that conformance holds it to: it names what a device lacks, keeps
// nothing of what failed half-way, gives every byte back, and stops asking a device that is lost.
#include "tier/device/cuda_device.h"

#include <cstdlib>
#include <vector>

#include "base/bytes.h"
#include "gpu/on_fake.h"

namespace terrace::tier {
namespace {

using fake_cuda::Call;
using fake_cuda::set_fault;

constexpr SessionId kSession{3};
constexpr std::uint64_t kBytes = 4 * kMiB;

class CudaDeviceTest : public fake_cuda::OnFake {
 protected:
  std::unique_ptr<CudaDevice> device(std::uint64_t capacity = 64 * kMiB) {
    context_ = *CudaContext::open(api(), 0);
    return *CudaDevice::create(context_, capacity);
  }
  // What the device holds at an address, through a copy of the driver's own.
  std::vector<std::byte> read(const std::byte* address, std::size_t bytes) {
    std::vector<std::byte> found(bytes, std::byte{0xEE});
    const cuda::Current current(api(), context_->context());
    const auto from = static_cast<cuda::Pointer>(reinterpret_cast<std::uintptr_t>(address));
    EXPECT_TRUE(api().copy_down(found.data(), from, bytes, nullptr));
    EXPECT_TRUE(api().stream_synchronize(nullptr));
    return found;
  }
  Result<void> add(CudaDevice& tier, std::uint64_t offset, SessionId session = kSession) {
    auto made = tier.create_segment(kBytes);
    if (!made) return std::unexpected(made.error());
    return tier.install(session, {offset, kBytes}, std::move(*made));
  }

  std::shared_ptr<CudaContext> context_;
};

TEST_F(CudaDeviceTest, IsTheDeviceThatItsOrdinalNames) {
  control.device_count = 2;
  const auto second = CudaContext::open(api(), 1);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ((*second)->name(), "Fake GPU 1");
  EXPECT_EQ((*second)->pci_bus_id(), "0000:02:00.0");
  EXPECT_EQ((*second)->room()->total_bytes, fake_cuda::kDeviceBytes);
  const auto third = CudaContext::open(api(), 2);
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(third.error().message, "cuda:2: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE (101)");
}

TEST_F(CudaDeviceTest, KnowsWhatItsOwnContextTakes) {
  ::setenv("TERRACE_NVML_LIBRARY", FAKE_CUDA, 1);
  EXPECT_EQ((*CudaContext::open(api(), 0))->own_bytes(), fake_cuda::kContextBytes);
  ::setenv("TERRACE_NVML_LIBRARY", "/nowhere/libnvidia-ml.so", 1);
  EXPECT_EQ((*CudaContext::open(api(), 0))->own_bytes(), 0U) << "not known";
  ::unsetenv("TERRACE_NVML_LIBRARY");
}

TEST_F(CudaDeviceTest, FreshMemoryIsZeroedThoughTheDeviceGivesGarbage) {
  const auto tier = device();
  ASSERT_TRUE(add(*tier, 0));
  const auto found = read(tier->address(kSession, 0), kBytes);
  EXPECT_EQ(found, std::vector<std::byte>(kBytes));
  EXPECT_GE(count(control, Call::kSet), 1U);
}

TEST_F(CudaDeviceTest, EverySegmentIsADescriptorOfItsOwnAndLivesByIt) {
  const auto tier = device();
  ASSERT_TRUE(add(*tier, 0));
  ASSERT_TRUE(add(*tier, kBytes));
  EXPECT_EQ(tier->address(kSession, kBytes), tier->address(kSession, 0) + kBytes);
  EXPECT_NE(tier->descriptor(kSession, 0), tier->descriptor(kSession, kBytes));
  EXPECT_EQ(context_->room()->free_bytes, fake_cuda::kDeviceBytes - 2 * kBytes);
}

TEST_F(CudaDeviceTest, GivesEverythingBack) {
  const auto mappings = control.mappings.load();
  const auto used = control.used_bytes[0].load();
  const auto unreserved = count(control, Call::kUnreserve);
  {
    const auto tier = device();
    ASSERT_TRUE(add(*tier, 0));
    ASSERT_TRUE(add(*tier, kBytes));
    ASSERT_TRUE(add(*tier, 0, SessionId{4}));
    ASSERT_TRUE(add(*tier, 0, SessionId{5}));
    ASSERT_TRUE(tier->remove(kSession, {kBytes, kBytes}));
    tier->drop(SessionId{4});
    EXPECT_EQ(control.used_bytes[0].load(), used + 2 * kBytes);
  }
  EXPECT_EQ(control.mappings.load(), mappings);
  EXPECT_EQ(control.used_bytes[0].load(), used);
  EXPECT_EQ(count(control, Call::kUnreserve), unreserved + 4 + 3);  // zeroing reserves, too
}

TEST_F(CudaDeviceTest, AFullDeviceSaysWhatIsFree) {
  control.device_bytes = 6 * kMiB;
  const auto tier = device();
  ASSERT_TRUE(add(*tier, 0));
  const auto refused = tier->create_segment(kBytes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)"), std::string::npos);
  EXPECT_NE(refused.error().message.find("2 MiB of 6 MiB are free"), std::string::npos) << refused.error().message;
}

TEST_F(CudaDeviceTest, WhatFailsHalfWayLeavesNothing) {
  const auto tier = device();
  const auto used = control.used_bytes[0].load();
  const auto mappings = control.mappings.load();
  const auto streams = control.streams.load();
  for (const Call call :
       {Call::kCreate, Call::kReserve, Call::kMap, Call::kSetAccess, Call::kStreamCreate, Call::kSet, Call::kExport}) {
    SCOPED_TRACE(static_cast<int>(call));
    set_fault(control, call, cuda::kOperatingSystem);
    const auto refused = tier->create_segment(kBytes);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("CUDA_ERROR_OPERATING_SYSTEM (304)"), std::string::npos);
    EXPECT_EQ(control.used_bytes[0].load(), used);
    EXPECT_EQ(control.mappings.load(), mappings);
    EXPECT_EQ(control.streams.load(), streams);
  }
  for (const Call call : {Call::kImport, Call::kMap, Call::kSetAccess}) {
    SCOPED_TRACE(static_cast<int>(call));
    auto made = tier->create_segment(kBytes);
    ASSERT_TRUE(made);
    set_fault(control, call, cuda::kOperatingSystem);
    EXPECT_FALSE(tier->install(kSession, {0, kBytes}, std::move(*made)));
    EXPECT_EQ(control.mappings.load(), mappings);
  }
  EXPECT_TRUE(add(*tier, 0));
}

TEST_F(CudaDeviceTest, ALostDeviceIsNotAskedAgain) {
  const auto tier = device();
  ASSERT_TRUE(add(*tier, 0));
  control.lost[0] = cuda::kEccUncorrectable;
  const auto refused = tier->create_segment(kBytes);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(refused.error().message, "cuda:0 (Fake GPU 0) is lost: cuMemCreate: CUDA_ERROR_ECC_UNCORRECTABLE (214)");
  const auto asked = count(control, Call::kCreate);
  EXPECT_FALSE(tier->create_segment(kBytes));
  EXPECT_EQ(count(control, Call::kCreate), asked);
  EXPECT_TRUE(context_->lost());
  tier->drop(kSession);
}

}  // namespace
}  // namespace terrace::tier
