// SPDX-License-Identifier: Apache-2.0
// Shows when leases of a GPU's memory end, on the fake driver: when it has passed what their streams held, not while it
// does not say so, and without breaking the capture of a graph.
#include "gpu/cuda_end.h"

namespace terrace::e2e {
namespace {

TEST_F(CudaEnd, ALeaseEndsWhenTheStreamHasPassedItsRelease) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor tensor = make(client);
  Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
  ASSERT_TRUE(written) << written.error().message;
  cuda::Stream stream = nullptr;
  ASSERT_TRUE(api().stream_create(&stream, cuda::kStreamNonBlocking, 0));
  control.hold = 1;
  write(*written, 3, stream);
  ASSERT_TRUE(written->release(static_cast<void*>(stream)));
  EXPECT_FALSE(*written);
  EXPECT_FALSE(written->release(static_cast<void*>(stream)));
  EXPECT_EQ(client.held(), 1U);
  control.hold = 0;
  EXPECT_TRUE(eventually([&] { return client.held() == 0; }));
  const Result<Lease> read = lease(client, tensor, Mode::kRead);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(holds(*read, 3));
  ASSERT_TRUE(api().stream_destroy(stream));
}

TEST_F(CudaEnd, ADeletersReleaseWaitsForTheStreamToo) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor tensor = make(client);
  Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
  ASSERT_TRUE(written) << written.error().message;
  control.hold = 1;
  cuda::Stream stream = nullptr;
  ASSERT_TRUE(api().stream_create(&stream, cuda::kStreamNonBlocking, 0));
  write(*written, 4, stream);
  const auto recorded = count(control, Call::kEventRecord);
  release_soon(*written, stream);
  EXPECT_TRUE(eventually([&] { return count(control, Call::kEventRecord) > recorded; }));
  EXPECT_EQ(client.held(), 1U);
  control.hold = 0;
  EXPECT_TRUE(eventually([&] { return client.held() == 0; }));
  ASSERT_TRUE(api().stream_destroy(stream));
}

TEST_F(CudaEnd, WhatTheGpuHasPassedHasEndedOnceItIsAwaited) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  EXPECT_TRUE(client.await_passed()) << "of nothing";
  const Tensor tensor = make(client);
  cuda::Stream stream = nullptr;
  ASSERT_TRUE(api().stream_create(&stream, cuda::kStreamNonBlocking, 0));
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
    ASSERT_TRUE(written) << written.error().message;
    control.hold = 1;
    write(*written, 4, stream);
    if (round % 2 == 0) {
      ASSERT_TRUE(written->release(static_cast<void*>(stream)));
    } else {
      release_soon(*written, stream);
    }
    if (round < 2) {
      EXPECT_FALSE(client.await_passed());
    }
    EXPECT_EQ(client.held(), 1U);
    control.hold = 0;
    ASSERT_TRUE(api().stream_synchronize(stream));
    EXPECT_TRUE(client.await_passed());
    EXPECT_EQ(client.held(), 0U);
  }
  ASSERT_TRUE(api().stream_destroy(stream));
}

// As Python's objects share a lease: whoever has a part of it last ends it.
TEST_F(CudaEnd, ALeaseThatIsSharedEndsWithItsLastPartAndBehindItsStream) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor tensor = make(client);
  cuda::Stream stream = nullptr;
  ASSERT_TRUE(api().stream_create(&stream, cuda::kStreamNonBlocking, 0));
  void* const used = stream;
  cuda::Pointer device = 0;
  ASSERT_TRUE(api().memory_allocate(&device, kBytes));
  for (const bool stream_is_last : {false, true}) {
    SCOPED_TRACE(stream_is_last);
    Result<Lease> host = lease(client, tensor, Mode::kOverwrite, Place::host());
    ASSERT_TRUE(host) << host.error().message;
    control.hold = 1;
    ASSERT_TRUE(api().copy_up(device, host->bytes().data(), kBytes, stream));
    const LeaseToken token = host->detach();
    std::shared_ptr<const void> part(&token, [token](const void*) { release_token(token); });
    ASSERT_TRUE(keep_past(token, Place::host(), {&used, 1}, part));
    if (stream_is_last) {
      part.reset();
      EXPECT_TRUE(waits(client));
      EXPECT_EQ(client.held(), 1U);
    }
    control.hold = 0;
    if (!stream_is_last) {
      EXPECT_TRUE(eventually([&] { return part.use_count() == 1; }));
      EXPECT_EQ(client.held(), 1U);
      part.reset();
    }
    EXPECT_TRUE(eventually([&] { return client.held() == 0; }));
  }
  ASSERT_TRUE(api().memory_free(device));
  ASSERT_TRUE(api().stream_destroy(stream));
}

TEST_F(CudaEnd, TheDefaultStreamIsThatOfTheLeasesGpu) {
  control.device_count = 2;
  const Terraced daemon({.device_mib = 8, .memory_mib = 32, .block_mib = 64, .device = "cuda:all"});
  Client client = daemon.connect();
  Result<Lease> written = lease(client, make(client), Mode::kOverwrite, Place::device(1));
  ASSERT_TRUE(written) << written.error().message;
  cuda::Context second = nullptr;
  ASSERT_TRUE(api().primary_retain(&second, 1));
  control.hold = 0b10;
  {
    const cuda::Current current(api(), second);
    auto* const legacy = reinterpret_cast<cuda::Stream>(std::uintptr_t{1});  // as null, by a name
    write(*written, 3, legacy);
  }
  ASSERT_TRUE(written->release(nullptr));  // where the first GPU is current, whose streams are idle
  EXPECT_TRUE(waits(client));
  EXPECT_EQ(client.held(), 1U);
  control.hold = 0;
  EXPECT_TRUE(eventually([&] { return client.held() == 0; }));
  ASSERT_TRUE(api().primary_release(1));
}

// The point is recorded, but nobody can say whether it was passed; or it cannot be recorded yet.
TEST_F(CudaEnd, ALeaseIsKeptWhileTheDriverDoesNotSayThatItsStreamIsPast) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor tensor = make(client);
  cuda::Stream stream = nullptr;
  ASSERT_TRUE(api().stream_create(&stream, cuda::kStreamNonBlocking, 0));
  for (const Call refused : {Call::kEventQuery, Call::kEventRecord}) {
    SCOPED_TRACE(static_cast<int>(refused));
    Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
    ASSERT_TRUE(written) << written.error().message;
    control.hold = 1;
    write(*written, 4, stream);
    const auto asked = count(control, refused);
    set_fault(control, refused, cuda::kNotPermitted, 3);
    release_soon(*written, stream);
    EXPECT_TRUE(eventually([&] { return count(control, refused) >= asked + 4; }));
    EXPECT_EQ(client.held(), 1U);
    control.hold = 0;
    EXPECT_TRUE(eventually([&] { return client.held() == 0; }));
  }
  ASSERT_TRUE(api().stream_destroy(stream));
}

TEST_F(CudaEnd, ALostGpuIsPastEveryRelease) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor tensor = make(client);
  cuda::Stream stream = nullptr;
  ASSERT_TRUE(api().stream_create(&stream, cuda::kStreamNonBlocking, 0));
  Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
  ASSERT_TRUE(written) << written.error().message;
  control.hold = 1;
  write(*written, 4, stream);
  ASSERT_TRUE(written->release(static_cast<void*>(stream)));
  EXPECT_EQ(client.held(), 1U);
  control.lost[0] = cuda::kEccUncorrectable;
  EXPECT_TRUE(eventually([&] { return client.held() == 0; }));
  ASSERT_TRUE(api().stream_destroy(stream));
}

// In the mode in which any thread's wrong call breaks it.
TEST_F(CudaEnd, TheCaptureOfAGraphGoesOnWhileLeasesEndAndMemoryComes) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor before = make(client, "before");
  const Tensor captured = make(client, "captured", kMiB);
  cuda::Stream busy = nullptr;
  cuda::Stream capturing = nullptr;
  ASSERT_TRUE(api().stream_create(&busy, cuda::kStreamNonBlocking, 0));
  ASSERT_TRUE(api().stream_create(&capturing, cuda::kStreamNonBlocking, 0));
  Result<Lease> written = lease(client, before, Mode::kOverwrite);
  Result<Lease> used = lease(client, captured, Mode::kOverwrite);
  ASSERT_TRUE(written && used);
  control.hold = 1;
  write(*written, 4, busy);
  ASSERT_TRUE(written->release(static_cast<void*>(busy)));

  ASSERT_EQ(fake_cuda::exported<int(cuda::Stream, cuda::CaptureMode)>("cuStreamBeginCapture_v2")(capturing,
                                                                                                 cuda::kCaptureGlobal),
            0);
  write(*used, 5, capturing);
  const Result<void> refused = used->release(static_cast<void*>(capturing));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition) << refused.error().message;
  release_soon(*used, capturing);
  const Result<Lease> host = lease(client, make(client, "host"), Mode::kOverwrite, Place::host());
  EXPECT_TRUE(host) << host.error().message;
  EXPECT_TRUE(waits(client));
  EXPECT_EQ(client.held(), 3U);
  void* graph = nullptr;
  EXPECT_EQ(fake_cuda::exported<int(cuda::Stream, void**)>("cuStreamEndCapture")(capturing, &graph), 0);

  control.hold = 0;
  EXPECT_TRUE(eventually([&] { return client.held() == 1; }));
  ASSERT_TRUE(api().stream_destroy(busy));
  ASSERT_TRUE(api().stream_destroy(capturing));
}

}  // namespace
}  // namespace terrace::e2e
