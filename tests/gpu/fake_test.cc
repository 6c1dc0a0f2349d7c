// SPDX-License-Identifier: Apache-2.0
// Shows that the fake driver refuses what the documentation of the real one says that it refuses, so that what passes
// on the fake does not rest on its leniency.
#include <sys/mman.h>

#include <array>
#include <thread>
#include <vector>

#include "gpu/on_fake.h"

namespace terrace::fake_cuda {
namespace {

constexpr std::size_t kUnit = std::size_t{2} << 20;
constexpr std::size_t kPage = 4096;

class Fake : public OnFake {
 protected:
  // Memory of the first device, to be mapped.
  static cuda::Allocation memory(std::size_t bytes = kUnit) {
    cuda::Allocation made = 0;
    const cuda::AllocationProperties wanted;
    EXPECT_TRUE(api().create(&made, bytes, &wanted, 0));
    return made;
  }
  static cuda::Pointer range(std::size_t bytes) {
    cuda::Pointer at = 0;
    EXPECT_TRUE(api().reserve(&at, bytes, kUnit, 0, 0));
    return at;
  }
  static cuda::Stream stream() {
    cuda::Stream made = nullptr;
    EXPECT_TRUE(api().stream_create(&made, cuda::kStreamNonBlocking, 0));
    return made;
  }
  static cuda::Event recorded(cuda::Stream stream) {
    cuda::Event event = nullptr;
    EXPECT_TRUE(api().event_create(&event, cuda::kEventDisableTiming));
    EXPECT_TRUE(api().event_record(event, stream));
    return event;
  }
  static void begin_capture(cuda::Stream stream, cuda::CaptureMode mode) {
    EXPECT_EQ(exported<int(cuda::Stream, cuda::CaptureMode)>("cuStreamBeginCapture_v2")(stream, mode), cuda::kSuccess);
  }
  static cuda::Status end_capture(cuda::Stream stream) {
    void* graph = nullptr;
    return exported<int(cuda::Stream, void**)>("cuStreamEndCapture")(stream, &graph);
  }

  cuda::Context context_ = [] {
    cuda::Context made = nullptr;
    EXPECT_TRUE(api().primary_retain(&made, 0));
    return made;
  }();
  cuda::Current current_{api(), context_};
};

TEST_F(Fake, GivesMemoryAsItIsDocumentedAlone) {
  cuda::Allocation made = 0;
  const cuda::AllocationProperties good;
  EXPECT_EQ(api().create.status(&made, kUnit + kPage, &good, 0), cuda::kInvalidValue);
  EXPECT_EQ(api().create.status(&made, kUnit, &good, 1), cuda::kInvalidValue);
  cuda::AllocationProperties wrong = good;
  wrong.type = 0;
  EXPECT_EQ(api().create.status(&made, kUnit, &wrong, 0), cuda::kInvalidValue);
  wrong = good;
  wrong.handle_types = 2;
  EXPECT_EQ(api().create.status(&made, kUnit, &wrong, 0), cuda::kInvalidValue);
  wrong = good;
  wrong.location.id = 1;
  EXPECT_EQ(api().create.status(&made, kUnit, &wrong, 0), cuda::kInvalidDevice);
  cuda::Pointer at = 0;
  EXPECT_EQ(api().reserve.status(&at, kUnit, 3 * kPage, 0, 0), cuda::kInvalidValue);
  EXPECT_EQ(api().reserve.status(&at, kUnit, kUnit, 0, 1), cuda::kInvalidValue);
  ASSERT_TRUE(api().reserve(&at, kUnit, 4 * kUnit, 0, 0));
  EXPECT_EQ(at % (4 * kUnit), 0U);
  EXPECT_TRUE(api().unreserve(at, kUnit));
}

TEST_F(Fake, MapsWholeAllocationsAndGivesAccessToThem) {
  const cuda::Allocation allocation = memory();
  const cuda::Pointer at = range(2 * kUnit);
  EXPECT_EQ(api().map.status(at + kPage, kUnit, 0, allocation, 0), cuda::kInvalidValue);
  EXPECT_EQ(api().map.status(at, kUnit, 0, allocation, 1), cuda::kInvalidValue);
  EXPECT_EQ(api().map.status(at, 2 * kUnit, 0, allocation, 0), cuda::kInvalidValue);
  ASSERT_TRUE(api().map(at, kUnit, 0, allocation, 0));
  EXPECT_EQ(api().map.status(at, kUnit, 0, allocation, 0), cuda::kInvalidValue);

  cuda::AccessDescription access;
  EXPECT_EQ(api().set_access.status(at, 2 * kUnit, &access, 1), cuda::kInvalidValue) << "half of it is not mapped";
  EXPECT_EQ(api().set_access.status(at, kUnit, &access, 0), cuda::kInvalidValue);
  EXPECT_EQ(api().set_access.status(at, kPage, &access, 1), cuda::kInvalidValue);
  access.flags = 2;
  EXPECT_EQ(api().set_access.status(at, kUnit, &access, 1), cuda::kInvalidValue);
  access = {};
  access.location.id = 1;
  EXPECT_EQ(api().set_access.status(at, kUnit, &access, 1), cuda::kInvalidDevice);

  std::array<std::byte, 64> bytes{};
  EXPECT_EQ(api().copy_up.status(at, bytes.data(), bytes.size(), nullptr), cuda::kInvalidValue) << "no access yet";
  access = {};
  access.flags = 1;
  ASSERT_TRUE(api().set_access(at, kUnit, &access, 1));
  EXPECT_TRUE(api().copy_down(bytes.data(), at, bytes.size(), nullptr));
  EXPECT_EQ(api().copy_up.status(at, bytes.data(), bytes.size(), nullptr), cuda::kInvalidValue) << "to read alone";
  access = {};
  ASSERT_TRUE(api().set_access(at, kUnit, &access, 1));
  EXPECT_TRUE(api().copy_up(at, bytes.data(), bytes.size(), nullptr));
  ASSERT_TRUE(api().stream_synchronize(nullptr));
  EXPECT_TRUE(api().unmap(at, kUnit) && api().unreserve(at, 2 * kUnit) && api().release(allocation));
}

TEST_F(Fake, CopiesWithinOneRegistrationOrNone) {
  std::byte* const host = [] {
    void* found = ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return static_cast<std::byte*>(found);
  }();
  cuda::Pointer device = 0;
  ASSERT_TRUE(api().memory_allocate(&device, kUnit));
  ASSERT_TRUE(api().host_register(host, kPage, cuda::kHostRegisterPortable));
  ASSERT_TRUE(api().host_register(host + kPage, kPage, cuda::kHostRegisterPortable));
  EXPECT_EQ(api().host_register.status(host + kPage / 2, kPage, 0), cuda::kHostMemoryAlreadyRegistered);
  EXPECT_TRUE(api().copy_up(device, host, kPage, nullptr));
  EXPECT_TRUE(api().copy_up(device, host + 2 * kPage, 2 * kPage, nullptr)) << "none";
  EXPECT_EQ(api().copy_up.status(device, host, 2 * kPage, nullptr), cuda::kInvalidValue) << "of two";
  EXPECT_EQ(api().copy_down.status(host + kPage, device, 2 * kPage, nullptr), cuda::kInvalidValue) << "in part";
  EXPECT_EQ(api().copy_down.status(host + kPage - 1, device, 2, nullptr), cuda::kInvalidValue);

  EXPECT_EQ(api().host_register.status(host + 2 * kPage, kPage, 0x100), cuda::kInvalidValue);
  ASSERT_EQ(::mprotect(host + 2 * kPage, kPage, PROT_READ), 0);
  EXPECT_EQ(api().host_register.status(host + 2 * kPage, kPage, 0), cuda::kInvalidValue) << "may not be written";
  EXPECT_TRUE(api().host_register(host + 2 * kPage, kPage, cuda::kHostRegisterReadOnly));
  ASSERT_EQ(::mprotect(host + 3 * kPage, kPage, PROT_NONE), 0);
  EXPECT_EQ(api().host_register.status(host + 3 * kPage, kPage, cuda::kHostRegisterReadOnly), cuda::kInvalidValue);

  EXPECT_EQ(api().host_unregister.status(host + kPage / 2), cuda::kHostMemoryNotRegistered);
  for (std::size_t each = 0; each < 3; ++each) EXPECT_TRUE(api().host_unregister(host + each * kPage));
  ASSERT_TRUE(api().stream_synchronize(nullptr));
  EXPECT_TRUE(api().memory_free(device));
  ::munmap(host, 4 * kPage);
}

TEST_F(Fake, AQueryBreaksTheCaptureOfAnotherThreadUnlessItsThreadIsRelaxed) {
  const cuda::Stream captured = stream();
  const cuda::Stream other = stream();
  const cuda::Event event = recorded(other);
  ASSERT_TRUE(api().stream_synchronize(other));
  const auto query = [&](bool relaxed) {
    cuda::Status said = cuda::kUnknown;
    std::thread([&] {
      cuda::CaptureMode mode = relaxed ? cuda::kCaptureRelaxed : cuda::kCaptureGlobal;
      EXPECT_TRUE(api().exchange_capture_mode(&mode));
      said = api().event_query.status(event);
    }).join();
    return said;
  };
  begin_capture(captured, cuda::kCaptureGlobal);
  EXPECT_EQ(query(true), cuda::kSuccess);
  EXPECT_EQ(end_capture(captured), cuda::kSuccess);
  begin_capture(captured, cuda::kCaptureGlobal);
  EXPECT_EQ(query(false), cuda::kStreamCaptureUnsupported);
  EXPECT_EQ(end_capture(captured), 901);
  constexpr cuda::CaptureMode kThreadLocal = 1;
  begin_capture(captured, kThreadLocal);
  EXPECT_EQ(query(false), cuda::kSuccess);
  cuda::Pointer device = 0;
  EXPECT_EQ(api().memory_allocate.status(&device, kUnit), cuda::kStreamCaptureUnsupported) << "of the same thread";
  EXPECT_EQ(end_capture(captured), 901);
  EXPECT_TRUE(api().event_destroy(event) && api().stream_destroy(captured) && api().stream_destroy(other));
}

TEST_F(Fake, WhatIsCapturedDoesNotRun) {
  const cuda::Stream captured = stream();
  begin_capture(captured, cuda::kCaptureGlobal);
  cuda::CaptureStatus status = cuda::kNotCapturing;
  EXPECT_TRUE(api().stream_is_capturing(captured, &status));
  EXPECT_NE(status, cuda::kNotCapturing);
  const cuda::Event event = recorded(captured);
  EXPECT_EQ(end_capture(captured), cuda::kSuccess);
  EXPECT_EQ(api().event_query.status(event), 907);
  EXPECT_TRUE(api().event_destroy(event) && api().stream_destroy(captured));
}

}  // namespace
}  // namespace terrace::fake_cuda
