// SPDX-License-Identifier: Apache-2.0
// Shows what a GPU that fails costs: its own tier, which says so with the driver's call and code, and nothing else,
// whether it fails before the daemon starts, while it starts, while it serves, or between two daemons, or is none of
// those that are configured.
#include <csignal>
#include <cstdlib>

#include "gpu/cuda_failures.h"

namespace terrace::e2e {
namespace {

TEST_F(CudaFailures, OneThatIsSickAtTheStartCostsTheOthersNothing) {
  control.device_count = 3;
  control.lost[1] = cuda::kEccUncorrectable;
  const Terraced daemon(on("cuda:all"));
  EXPECT_EQ(failure_of(daemon, 0), "");
  EXPECT_TRUE(has(failure_of(daemon, 1), kRetainFailed)) << failure_of(daemon, 1);
  EXPECT_EQ(failure_of(daemon, 2), "");
  EXPECT_TRUE(has(daemon.log(), "device:1 does not serve: cuda:1 (Fake GPU 1): " + std::string(kRetainFailed)))
      << daemon.log();
  Client client = daemon.connect();
  for (const std::uint32_t gpu : {0U, 2U}) {
    const Tensor tensor = make(client, "on " + std::to_string(gpu));
    const Result<Lease> written = lease(client, tensor, Mode::kOverwrite, Place::device(gpu));
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_EQ(written->cuda_device(), static_cast<int>(gpu)) << "places keep their numbers";
  }
  const Tensor tensor = make(client, "on 1");
  const Result<Lease> refused = lease(client, tensor, Mode::kOverwrite, Place::device(1));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(has(refused.error().message, kRetainFailed)) << refused.error().message;
  EXPECT_TRUE(daemon.serves_on());
}

TEST_F(CudaFailures, AutoDoesNotPretendOne) {
  control.lost[0] = cuda::kEccUncorrectable;
  const Terraced daemon(on("auto"));
  EXPECT_TRUE(has(failure_of(daemon, 0), kRetainFailed)) << failure_of(daemon, 0);
  EXPECT_TRUE(daemon.serves_on());
  Client client = daemon.connect();
  EXPECT_FALSE(lease(client, make(client), Mode::kOverwrite, Place::device(0)));
}

TEST_F(CudaFailures, ADriverThatIsNotReadyIsNoMissingOne) {
  set_fault(control, Call::kInit, cuda::kSystemNotReady, 1000);
  const Terraced daemon(on("auto"));
  EXPECT_TRUE(has(failure_of(daemon, 0), "cuInit: CUDA error (802)")) << failure_of(daemon, 0);
  EXPECT_TRUE(daemon.serves_on());
}

TEST_F(CudaFailures, OneThatIsNotConfiguredDoesNotMatter) {
  control.device_count = 2;
  control.lost[0] = cuda::kEccUncorrectable;
  const Terraced daemon(on("cuda:1"));
  EXPECT_EQ(failure_of(daemon, 0), "");
  EXPECT_FALSE(has(daemon.log(), "cuda:0")) << daemon.log();
  Process trainer([&] {
    ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    Client client = daemon.connect();
    return lease(client, make(client), Mode::kOverwrite) ? 0 : 1;
  });
  EXPECT_EQ(trainer.wait(), 0);
}

TEST_F(CudaFailures, OneThatFailsOnlyAsItStartsIsATierThatSaysSo) {
  for (const Call call : {Call::kRetain, Call::kStreamCreate, Call::kHostRegister}) {
    SCOPED_TRACE(static_cast<int>(call));
    set_fault(control, call, cuda::kOperatingSystem, 1, call == Call::kRetain ? 1 : 0);  // the first asks what is there
    const Terraced daemon(on("cuda:0"));
    EXPECT_TRUE(has(failure_of(daemon, 0), "CUDA_ERROR_OPERATING_SYSTEM (304)")) << failure_of(daemon, 0);
    EXPECT_TRUE(daemon.serves_on());
  }
}

TEST_F(CudaFailures, TensorsThatAreLostWithOneAreNamed) {
  const Terraced daemon(on("cuda:0"));
  Client client = daemon.connect();
  const Tensor safe = make(client, "safe");
  {
    const Result<Lease> written = lease(client, safe, Mode::kOverwrite);
    ASSERT_TRUE(written) << written.error().message;
    write(*written, 5);
  }
  ASSERT_TRUE(client.swap_out({&safe, 1}));
  ASSERT_TRUE(lease(client, safe, Mode::kRead));  // clean: its bytes are on the block tier too
  std::vector<Tensor> there;
  for (int each = 0; each < 10; ++each) {
    there.push_back(make(client, "there " + std::to_string(each), 100'000));
    ASSERT_TRUE(lease(client, there.back(), Mode::kOverwrite));
  }
  Result<Lease> held = lease(client, make(client, "held", 100'000), Mode::kOverwrite);
  ASSERT_TRUE(held) << held.error().message;
  control.lost[0] = cuda::kEccUncorrectable;
  EXPECT_FALSE(lease(client, there[0], Mode::kRead, Place::host()));  // by which it is found out
  const std::string gpu = "cuda:0 (Fake GPU 0) is lost: ";
  const auto count = [&] { return daemon.status()["tiers"][0]["lost_tensors"].get<std::uint64_t>(); };
  ASSERT_TRUE(eventually([&] { return count() == 10; })) << daemon.log();
  EXPECT_TRUE(has(daemon.log(), "tensors are lost with device:0: 'there ")) << daemon.log();
  EXPECT_TRUE(has(daemon.log(), "'there 5' of session 2")) << daemon.log();
  EXPECT_TRUE(has(daemon.log(), " more\n")) << daemon.log();
  ASSERT_TRUE(held->release());
  ASSERT_TRUE(eventually([&] { return count() == 11; })) << "as its lease ends: " << daemon.log();
  EXPECT_TRUE(has(daemon.log(), "1 tensor is lost with device:0: 'held' of session 2")) << daemon.log();
  const Result<Lease> lost = lease(client, there[9], Mode::kRead, Place::host());
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, ErrorCode::kDataLoss);
  EXPECT_TRUE(has(lost.error().message, "'there 9' are lost with device:0 (" + gpu)) << lost.error().message;
  const Result<Lease> refused = lease(client, there[9], Mode::kOverwrite);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(has(refused.error().message, "'there 9' cannot be had in device:0, which does not serve: " + gpu))
      << refused.error().message;
  const Result<Lease> read = lease(client, safe, Mode::kRead, Place::host());
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(first_difference(read->bytes(), 1, 5), kBytes);
}

TEST_F(CudaFailures, WhatWasWrittenBackEarlyIsNotLostWithOne) {
  constexpr int kTensors = 5;  // far from filling the tier
  TerracedOptions options = on("cuda:0");
  options.write_back = "auto";  // early, of a GPU
  const Terraced daemon(options);
  Client client = daemon.connect();
  std::vector<Tensor> tensors;
  for (int each = 0; each < kTensors; ++each) {
    tensors.push_back(make(client, "t" + std::to_string(each), 500'000));
    const Result<Lease> written = lease(client, tensors.back(), Mode::kOverwrite);
    ASSERT_TRUE(written) << written.error().message;
    write(*written, 7);
  }
  Result<Lease> held = lease(client, make(client, "held", 500'000), Mode::kOverwrite);
  ASSERT_TRUE(held) << held.error().message;
  const auto moved = [&] {
    const nlohmann::json status = daemon.status();
    for (const auto& link : status["links"])
      if (link["name"] == "device_to_host:0") return link["transfers"].get<int>();
    return 0;
  };
  ASSERT_TRUE(eventually([&] { return moved() == kTensors; })) << daemon.status();
  EXPECT_GE(count(control, fake_cuda::Call::kCopyDown), std::uint64_t{kTensors});
  control.lost[0] = cuda::kEccUncorrectable;
  ASSERT_TRUE(held->release());  // to be written back too, by which it is found out
  const auto lost = [&] { return daemon.status()["tiers"][0]["lost_tensors"].get<int>(); };
  ASSERT_TRUE(eventually([&] { return lost() == 1; })) << daemon.log();
  EXPECT_TRUE(has(daemon.log(), "1 tensor is lost with device:0: 'held'")) << daemon.log();
  for (const Tensor& tensor : tensors) {
    const Result<Lease> read = lease(client, tensor, Mode::kRead, Place::host());
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(first_difference(read->bytes(), 1, 7), read->bytes().size());
  }
}

TEST_F(CudaRestarts, OfASegmentThatDoesNotComeBackOnlyWhatLayThereIsLost) {
  Result<Lease> held = lease(client_, tensors_.at("held"), Mode::kRead);
  ASSERT_TRUE(held) << held.error().message;
  give_up(daemon_);
  set_fault(control, Call::kImport, cuda::kInvalidValue);
  restart();
  EXPECT_EQ(failure_of(daemon_, 0), "");
  for (const char* name : {"far", "copied", "host"}) EXPECT_EQ(trouble(name), "") << name;
  const std::string why = "cuMemImportFromShareableHandle: CUDA_ERROR_INVALID_VALUE (1)";
  for (const char* name : {"first", "beside"}) {
    EXPECT_TRUE(has(trouble(name), "'" + std::string(name) + "' are lost with device:0")) << trouble(name);
    EXPECT_TRUE(has(trouble(name), why)) << trouble(name);
  }
  EXPECT_TRUE(has(daemon_.log(), "2 tensors are lost with device:0: 'first' of session 2, 'beside' of session 2"))
      << daemon_.log();
  EXPECT_TRUE(holds(*held, 4)) << "the trainer's own mapping of it is good";
  ASSERT_TRUE(held->release());
  const auto count = [&] { return daemon_.status()["tiers"][0]["lost_tensors"].get<std::uint64_t>(); };
  ASSERT_TRUE(eventually([&] { return count() == 3; })) << "as its lease ends: " << daemon_.log();
  EXPECT_TRUE(has(trouble("held"), why)) << trouble("held");
  write_to("first");
  EXPECT_EQ(trouble("first"), "");
}

TEST_F(CudaRestarts, WithoutTheGpuAllThatIsElsewhereIsThere) {
  control.lost[0] = cuda::kEccUncorrectable;
  restart();
  EXPECT_TRUE(has(failure_of(daemon_, 0), kRetainFailed)) << failure_of(daemon_, 0);
  for (const char* name : {"copied", "host"}) EXPECT_EQ(trouble(name), "") << name;
  for (const char* name : {"first", "far"}) EXPECT_TRUE(has(trouble(name), "are lost with device:0")) << trouble(name);
  EXPECT_TRUE(has(daemon_.log(), "4 tensors are lost with device:0")) << daemon_.log();
  control.lost[0] = 0;
  restart();
  EXPECT_EQ(failure_of(daemon_, 0), "");
  write_to("first");
  for (const char* name : {"first", "copied", "host"}) EXPECT_EQ(trouble(name), "") << name;
}

TEST_F(CudaRestarts, AGpuThatIsLostAsItTakesBackIsWaitedForByNobody) {
  for (const Call call : {Call::kImport, Call::kMap}) {
    SCOPED_TRACE(static_cast<int>(call));
    set_fault(control, call, cuda::kEccUncorrectable, 1'000);
    restart();
    EXPECT_TRUE(has(failure_of(daemon_, 0), "CUDA_ERROR_ECC_UNCORRECTABLE (214)")) << failure_of(daemon_, 0);
    for (const char* name : {"copied", "host"}) EXPECT_EQ(trouble(name), "") << name;
    EXPECT_TRUE(has(trouble("first"), "are lost with device:0")) << trouble("first");
    set_fault(control, call, 0);
    restart();
    EXPECT_EQ(failure_of(daemon_, 0), "");
    write_to("first");
  }
}

TEST_F(CudaRestarts, WhatIsWrittenOnceItServesAgainIsWorthWaitingFor) {
  control.lost[0] = cuda::kEccUncorrectable;
  restart();
  control.lost[0] = 0;
  restart();
  write_to("first");
  set_fault(control, Call::kImport, cuda::kOutOfMemory, 1);  // of the next daemon alone
  restart();
  EXPECT_TRUE(has(daemon_.log(), "it is tried again every 10 s")) << daemon_.log();
  EXPECT_EQ(trouble("first"), "");
}

}  // namespace
}  // namespace terrace::e2e
