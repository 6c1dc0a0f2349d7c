// SPDX-License-Identifier: Apache-2.0
// Shows HBM end to end, on the fake driver: the real daemon and the real library in processes of their own pass memory
// of a GPU between them, bytes come back from every tier, host memory is pinned for the trainer's own copies, and a GPU
// that is full, fails or is lost costs its own tensors and nothing else.
#include <utility>

#include "gpu/cuda_end.h"

namespace terrace::e2e {
namespace {

TEST_F(CudaEnd, BytesWrittenInHbmComeBackFromEveryTier) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor tensor = make(client);
  {
    Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_EQ(written->cuda_device(), 0);
    EXPECT_EQ(written->place(), Place::device(0));
    write(*written, 7);
  }
  for (const Place place : {Place::block(), Place::host(), Place::block(), Place::device(0)}) {
    SCOPED_TRACE(place.name());
    ASSERT_TRUE(place == Place::device(0) ? client.swap_in({&tensor, 1}, place) : client.swap_out({&tensor, 1}, place));
    const Result<Lease> read = lease(client, tensor, Mode::kRead);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(holds(*read, 7));
  }
  const Result<Lease> host = lease(client, tensor, Mode::kRead, Place::host());
  ASSERT_TRUE(host) << host.error().message;
  EXPECT_EQ(host->cuda_device(), std::nullopt);
  EXPECT_EQ(first_difference(host->bytes(), 1, 7), kBytes);
  EXPECT_GE(count(control, Call::kExport), 1U);
  EXPECT_GE(count(control, Call::kImport), 2U);
}

TEST_F(CudaEnd, MoreTensorsThanHbmHoldsAllKeepTheirBytes) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  std::vector<Tensor> tensors;
  for (std::uint64_t each = 0; each < 6; ++each) {
    tensors.push_back(make(client, "t" + std::to_string(each)));
    Result<Lease> written = lease(client, tensors.back(), Mode::kOverwrite);
    ASSERT_TRUE(written) << written.error().message;
    write(*written, 10 + each);
  }
  for (std::uint64_t each = 0; each < 6; ++each) {
    const Result<Lease> read = lease(client, tensors[each], Mode::kRead);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(holds(*read, 10 + each)) << each;
  }
}

TEST_F(CudaEnd, AResidentTensorIsLeasedWithoutADriverCall) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor tensor = make(client);
  ASSERT_TRUE(lease(client, tensor, Mode::kOverwrite));
  const auto before = fake_cuda::calls(control);
  for (int each = 0; each < 100; ++each) ASSERT_TRUE(lease(client, tensor, Mode::kRead));
  EXPECT_EQ(fake_cuda::calls(control), before);
}

// Segments are of 2 MiB here, and the driver refuses one copy of two registrations: what straddles segments is pinned,
// too, wherever it lies.
TEST_F(CudaEnd, HostMemoryIsPinnedForTheTrainersOwnCopies) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const auto pageable = control.pageable_copies.load();
  const auto registered = control.registered_bytes.load();
  std::vector<Tensor> tensors;
  for (const std::uint64_t bytes : {kMiB, kBytes, kBytes, 5 * kMiB}) {
    if (tensors.size() == 3) {  // it takes the room of all of them
      ASSERT_TRUE(client.destroy(std::exchange(tensors, {})));
    }
    tensors.push_back(make(client, "of " + std::to_string(tensors.size()), bytes));
    Result<Lease> host = lease(client, tensors.back(), Mode::kOverwrite, Place::host());
    ASSERT_TRUE(host) << host.error().message;
    EXPECT_TRUE(copies_up(*host));
    ASSERT_TRUE(host->release());
    const Result<Lease> read = lease(client, tensors.back(), Mode::kRead, Place::host());  // at addresses for reading
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(copies_up(*read));
  }
  EXPECT_EQ(control.pageable_copies.load(), pageable);
  EXPECT_GT(client.pinned_bytes(), 0U);
  client.close();
  EXPECT_TRUE(eventually([&] { return control.registered_bytes.load() <= registered; }));
}

TEST_F(CudaEnd, HostMemoryThatIsNotPinnedIsCopiedAllTheSame) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  // The daemon pins each segment once, and so does the trainer, twice, and each straddler twice: some of those fail.
  set_fault(control, Call::kHostRegister, cuda::kOutOfMemory, 3, 3);
  std::vector<Tensor> tensors;
  for (std::size_t each = 0; each < 3; ++each) {
    tensors.push_back(make(client, "t" + std::to_string(each)));
    for (const Mode mode : {Mode::kOverwrite, Mode::kRead}) {
      const Result<Lease> host = lease(client, tensors.back(), mode, Place::host());
      ASSERT_TRUE(host) << host.error().message;
      EXPECT_TRUE(copies_up(*host));
    }
  }
  EXPECT_GE(count(control, Call::kHostRegister), 6U);
}

TEST_F(CudaEnd, EveryGpuIsAPlaceOfItsOwn) {
  control.device_count = 3;
  const Terraced daemon({.device_mib = 8, .memory_mib = 32, .block_mib = 64, .device = "cuda:all"});
  Client client = daemon.connect();
  for (const PlaceOffer& offer : client.places()) EXPECT_EQ(offer.gpu, offer.place != Place::host());
  for (std::uint32_t gpu = 0; gpu < 3; ++gpu) {
    const Tensor tensor = make(client, "on " + std::to_string(gpu));
    Result<Lease> written = lease(client, tensor, Mode::kOverwrite, Place::device(gpu));
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_EQ(written->cuda_device(), static_cast<int>(gpu));
    EXPECT_EQ(client.cuda_device(Place::device(gpu)).value(), written->cuda_device());
    write(*written, 20 + gpu);
    ASSERT_TRUE(written->release());
    EXPECT_GT(control.used_bytes[gpu].load(), 0U);
    const Result<Lease> read = lease(client, tensor, Mode::kRead, Place::host());
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(first_difference(read->bytes(), 1, 20 + gpu), kBytes);
  }
  EXPECT_EQ(client.cuda_device(Place::host()).value(), std::nullopt);
  const auto none = client.cuda_device(Place::device(3));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  // One of them lost costs the others nothing.
  control.lost[1] = cuda::kEccUncorrectable;
  const Tensor tensor = make(client, "moves on");
  EXPECT_FALSE(lease(client, tensor, Mode::kOverwrite, Place::device(1)) && client.swap_out({&tensor, 1}));
  const Tensor other = make(client, "beside");
  EXPECT_TRUE(lease(client, other, Mode::kOverwrite, Place::device(2)));
}

TEST_F(CudaEnd, ATrainerKnowsTheGpuByANumberOfItsOwn) {
  control.device_count = 2;
  const Terraced daemon({.device_mib = 8, .memory_mib = 16, .block_mib = 64, .device = "cuda:1"});
  Process trainer([&] {
    ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    Client client = daemon.connect();
    const Tensor tensor = make(client);
    const Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
    if (!written) return 1;
    return written->cuda_device() == 0 ? 0 : 2;
  });
  EXPECT_EQ(trainer.wait(), 0);
}

TEST_F(CudaEnd, ATrainerWithoutTheGpuLeasesElsewhere) {
  const Terraced daemon(kOnGpu);
  Process trainer([&] {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    Client client = daemon.connect();
    const Tensor tensor = make(client);
    const Result<Lease> refused = lease(client, tensor, Mode::kOverwrite);
    if (refused || refused.error().code != ErrorCode::kFailedPrecondition) return 1;
    if (refused.error().message.find("CUDA_VISIBLE_DEVICES") == std::string::npos) return 2;
    const auto number = client.cuda_device(Place::device(0));
    if (number || number.error().code != ErrorCode::kFailedPrecondition) return 4;
    return lease(client, tensor, Mode::kOverwrite, Place::host()) ? 0 : 3;
  });
  EXPECT_EQ(trainer.wait(), 0);
}

TEST_F(CudaEnd, AFullGpuIsSaidAndTriedAgain) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor tensor = make(client);
  set_fault(control, Call::kCreate, cuda::kOutOfMemory, 100);
  const Result<Lease> refused = lease(client, tensor, Mode::kOverwrite);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("CUDA_ERROR_OUT_OF_MEMORY (2)"), std::string::npos) << refused.error().message;
  set_fault(control, Call::kCreate, 0);
  const Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
  EXPECT_TRUE(written) << written.error().message;
}

TEST_F(CudaEnd, AFailedCopyIsAnErrorAndCostsNoBytes) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor tensor = make(client);
  {
    Result<Lease> written = lease(client, tensor, Mode::kOverwrite, Place::host());
    ASSERT_TRUE(written) << written.error().message;
    fill(written->writable_bytes(), 1, 5);
  }
  fake_cuda::set(control.copies, cuda::kOperatingSystem, 1000);
  const Result<Lease> refused = lease(client, tensor, Mode::kRead);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("CUDA_ERROR_OPERATING_SYSTEM (304)"), std::string::npos)
      << refused.error().message;
  control.copies.status = 0;
  const Result<Lease> read = lease(client, tensor, Mode::kRead);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(holds(*read, 5));
}

TEST_F(CudaEnd, WhatTheDaemonsContextTakesIsInItsStatus) {
  const Terraced daemon(kOnGpu);
  const auto tiers = daemon.status()["tiers"];
  EXPECT_EQ(tiers[0]["context_bytes"].get<std::uint64_t>(), fake_cuda::kContextBytes) << tiers;
  EXPECT_EQ(tiers[1].value("context_bytes", std::uint64_t{0}), 0U) << tiers;
}

TEST_F(CudaEnd, TheDaemonServesOnWithoutALostGpu) {
  const Terraced daemon(kOnGpu);
  Client client = daemon.connect();
  const Tensor safe = make(client, "safe");
  const Tensor there = make(client, "there");
  {
    Result<Lease> written = lease(client, safe, Mode::kOverwrite, Place::host());
    ASSERT_TRUE(written) << written.error().message;
    fill(written->writable_bytes(), 1, 6);
    ASSERT_TRUE(lease(client, there, Mode::kOverwrite));
  }
  control.lost[0] = cuda::kEccUncorrectable;
  const Result<Lease> refused = lease(client, safe, Mode::kRead);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("CUDA_ERROR_ECC_UNCORRECTABLE (214)"), std::string::npos)
      << refused.error().message;
  EXPECT_FALSE(lease(client, there, Mode::kRead, Place::host()));
  ASSERT_TRUE(client.swap_out({&safe, 1}));
  const Result<Lease> read = lease(client, safe, Mode::kRead, Place::host());
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(first_difference(read->bytes(), 1, 6), kBytes);
  EXPECT_TRUE(daemon.serves_on());
  const auto tiers = daemon.status()["tiers"];
  EXPECT_NE(tiers[0]["failure"].get<std::string>().find("cuda:0 (Fake GPU 0) is lost"), std::string::npos) << tiers;
  EXPECT_EQ(tiers[1].value("failure", ""), "");
  EXPECT_TRUE(eventually(
      [&] { return daemon.log().find("device:0 does not serve: cuda:0 (Fake GPU 0) is lost") != std::string::npos; }));
}

TEST_F(CudaEnd, WhatAKilledTrainerHadIsFreeAgain) {
  const Terraced daemon(kOnGpu);
  const auto used = control.used_bytes[0].load();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  Process trainer([&] {
    Client client = daemon.connect();
    const Tensor tensor = make(client, "t", 7 * kMiB);
    const Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
    const char ready = written ? 1 : 0;
    static_cast<void>(::write(pipe[1], &ready, 1));
    ::pause();
    return 0;
  });
  char ready = 0;
  ASSERT_EQ(::read(pipe[0], &ready, 1), 1);
  ASSERT_EQ(ready, 1);
  EXPECT_GT(control.used_bytes[0].load(), used);
  trainer.kill();
  trainer.wait();
  EXPECT_TRUE(eventually([&] { return control.used_bytes[0].load() == used; }));
  Client client = daemon.connect();
  const Tensor tensor = make(client, "t", 7 * kMiB);
  EXPECT_TRUE(lease(client, tensor, Mode::kOverwrite));
  ::close(pipe[0]);
  ::close(pipe[1]);
}

// The trainer's import keeps the memory: what the driver documents, and what the fake does.
TEST_F(CudaEnd, ALeaseStaysValidWhenTheDaemonIsKilled) {
  auto daemon = std::make_unique<Terraced>(kOnGpu);
  Client client = daemon->connect();
  const Tensor tensor = make(client);
  const Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
  ASSERT_TRUE(written) << written.error().message;
  write(*written, 8);
  ::kill(daemon->pid(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return !Client::connect({.socket = daemon->data_socket()}).has_value(); }));
  EXPECT_TRUE(holds(*written, 8));
}

// The descriptor store keeps a GPU's segments as it keeps others: what the new daemon gets back it imports.
TEST_F(CudaEnd, WhatWasInHbmIsThereAfterTheDaemonsRestart) {
  TerracedOptions options = kOnGpu;
  options.supervised = true;
  const Terraced terraced(options);
  Client client = terraced.connect();
  const Tensor tensor = make(client);
  {
    Result<Lease> written = lease(client, tensor, Mode::kOverwrite);
    ASSERT_TRUE(written) << written.error().message;
    write(*written, 9);
  }
  const pid_t first = terraced.daemon();
  ::kill(first, SIGKILL);
  ASSERT_TRUE(eventually([&] { return terraced.daemon() != 0 && terraced.daemon() != first; }));
  ASSERT_TRUE(eventually([&] { return client.reconnects() == 1; })) << terraced.log();
  {
    const Result<Lease> read = lease(client, tensor, Mode::kRead);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(holds(*read, 9));
  }
  ASSERT_TRUE(client.swap_out({&tensor, 1}));  // the new daemon reads what the old one had
  const Result<Lease> back = lease(client, tensor, Mode::kRead);
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_TRUE(holds(*back, 9));
}

TEST_F(CudaEnd, AConfigurationThatDoesNotFitTheGpuIsRefused) {
  control.device_bytes = 4 * kMiB;
  TerracedOptions too_large = kOnGpu;
  too_large.serves = false;
  const Terraced daemon(too_large);
  const Terraced::Ended ended = daemon.run_second(true, true);
  EXPECT_EQ(ended.status, 1);
  EXPECT_NE(ended.said.find("8 MiB"), std::string::npos) << ended.said;
  EXPECT_NE(ended.said.find("4 MiB"), std::string::npos) << ended.said;
}

}  // namespace
}  // namespace terrace::e2e
