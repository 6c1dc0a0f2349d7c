// SPDX-License-Identifier: Apache-2.0
// Shows what a successor does when a GPU is not as it was: what it cannot take back just now is held until it can,
// and what is gone costs its own tier and nothing else, however the configuration speaks of it.
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpu/cuda_failures.h"

namespace terrace::e2e {
namespace {

// A daemon that serves nothing, and why.
class CudaHeld : public CudaRestarts {
 protected:
  static constexpr const char* kNoRoom = "CUDA_ERROR_OUT_OF_MEMORY (2)";
  static constexpr std::int32_t kAlways = 1'000'000;
  static constexpr std::array kAll = {"first", "beside", "held", "copied", "far", "host"};

  // What whoever asks is told by the one that comes after a SIGKILL.
  std::string held() {
    EXPECT_TRUE(daemon_.replace(SIGKILL));
    std::string said;
    EXPECT_TRUE(eventually([&] { return has(said = daemon_.administer("status").said, "does not serve"); }))
        << said << daemon_.log();
    return said;
  }
  // Once it can serve; by a daemon that is started now.
  void serve_again() {
    const std::uint64_t before = client_.reconnects();
    ASSERT_TRUE(daemon_.replace(SIGTERM));
    ASSERT_TRUE(eventually([&] { return client_.reconnects() > before; })) << daemon_.log();
  }
  void expect_all_there() {
    EXPECT_EQ(failure_of(daemon_, 0), "");
    for (const char* name : kAll) EXPECT_EQ(trouble(name), "") << name;
  }
  void swap_all_out() {
    for (auto& [name, tensor] : tensors_) ASSERT_TRUE(client_.swap_out({&tensor, 1})) << name;
  }
};

TEST_F(CudaHeld, WhatCannotBeTakenBackUntilItCan) {
  const std::vector<std::pair<Call, cuda::Status>> wants = {
      {Call::kRetain, cuda::kOutOfMemory},       {Call::kStreamCreate, cuda::kOutOfMemory},
      {Call::kHostRegister, cuda::kOutOfMemory}, {Call::kReserve, cuda::kOutOfMemory},
      {Call::kImport, cuda::kOutOfMemory},       {Call::kMap, cuda::kOutOfMemory},
      {Call::kSetAccess, cuda::kOutOfMemory},    {Call::kRetain, cuda::kDeviceUnavailable},
      {Call::kInit, cuda::kSystemNotReady},      {Call::kRetain, cuda::kNotSupported},
      {Call::kRetain, cuda::kOperatingSystem},   {Call::kInit, cuda::kUnknown},
      {Call::kImport, cuda::kNotPermitted},      {Call::kStreamCreate, cuda::kInvalidValue},
      {Call::kRetain, cuda::kUnknown},           {Call::kImport, cuda::kInvalidValue},
  };
  for (const auto& [call, status] : wants) {
    SCOPED_TRACE(static_cast<int>(call));
    const std::uint64_t before = client_.reconnects();
    set_fault(control, call, status, kAlways);
    const std::string said = held();
    EXPECT_TRUE(has(said, "device:0 cannot take back just now")) << said;
    EXPECT_TRUE(has(said, " (" + std::to_string(status) + ")")) << said;
    EXPECT_TRUE(has(said, "4 tensors of pid " + std::to_string(::getpid()) + " have bytes nowhere else; see to that"))
        << said;
    EXPECT_TRUE(has(said, "--discard")) << said;
    EXPECT_EQ(client_.reconnects(), before);
    set_fault(control, call, 0);
    serve_again();
  }
  expect_all_there();
}

TEST_F(CudaHeld, ForAsLongAsItTakesAndNoLonger) {
  set_fault(control, Call::kRetain, cuda::kOutOfMemory, 1);  // of the next daemon alone
  restart();
  EXPECT_TRUE(has(daemon_.log(), "it is tried again every 10 s")) << daemon_.log();
  expect_all_there();
}

TEST_F(CudaHeld, OnlyWhereSomethingWouldBeLost) {
  swap_all_out();
  set_fault(control, Call::kRetain, cuda::kOutOfMemory, kAlways);
  restart();
  EXPECT_TRUE(has(failure_of(daemon_, 0), kNoRoom)) << failure_of(daemon_, 0);
  for (const char* name : kAll) EXPECT_EQ(trouble(name), "") << name;
  set_fault(control, Call::kRetain, 0);
  restart();
  expect_all_there();
}

TEST_F(CudaHeld, ForAWriteThatNobodyRecorded) {
  swap_all_out();
  ASSERT_TRUE(lease(client_, tensors_.at("copied"), Mode::kRead));
  {
    const Result<Lease> written = lease(client_, tensors_.at("copied"), Mode::kWrite);
    ASSERT_TRUE(written) << written.error().message;
    write(*written, 5);
  }
  set_fault(control, Call::kImport, cuda::kOutOfMemory, kAlways);
  const std::string said = held();
  EXPECT_TRUE(has(said, "1 tensor of pid " + std::to_string(::getpid()) + " has bytes nowhere else")) << said;
  set_fault(control, Call::kImport, 0);
  serve_again();
  const Result<Lease> read = lease(client_, tensors_.at("copied"), Mode::kRead, Place::host());
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(first_difference(read->bytes(), 1, 5), read->bytes().size());
}

TEST_F(CudaHeld, NotForATrainerThatIsGone) {
  swap_all_out();
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  Process trainer([&] {
    Client client = daemon_.connect();
    const Result<Lease> written = lease(client, make(client, "gone"), Mode::kOverwrite);
    if (written && ::write(ends[1], "x", 1) == 1) ::pause();
    return 1;
  });
  char there = 0;
  ASSERT_EQ(::read(ends[0], &there, 1), 1);
  for (const int end : ends) ::close(end);
  const pid_t before = daemon_.daemon();
  ASSERT_EQ(::kill(before, SIGSTOP), 0);  // so that it does not see the trainer go
  trainer.kill();
  trainer.wait();
  set_fault(control, Call::kRetain, cuda::kOutOfMemory, kAlways);
  restart();
  EXPECT_TRUE(has(failure_of(daemon_, 0), kNoRoom)) << failure_of(daemon_, 0);
  for (const char* name : kAll) EXPECT_EQ(trouble(name), "") << name;
}

// Two GPUs, of which the configuration says little.
class CudaMissing : public CudaFailures {
 protected:
  static constexpr std::uint64_t kGpuBytes = 400 * kMiB;

  CudaMissing() {
    control.device_count = 2;
    control.device_bytes = kGpuBytes;
    for (auto& used : control.used_bytes) used = 0;  // by daemons of other tests, which were killed
  }
  // A part of each is the daemon's; a tensor is on each, and one on the host.
  void serve(const std::string& device, const std::string& capacity = "capacity = \"2%\"") {
    TerracedOptions options = on(device);
    options.supervised = true;
    options.serves = false;
    daemon_.emplace(options);
    configure(*daemon_, "capacity = \"8MiB\"", capacity);
    daemon_->start_again();
    client_.emplace(daemon_->connect());
    for (std::uint32_t gpu = 0; gpu < daemon_->status()["tiers"].size() - 2; ++gpu) write_to(Place::device(gpu));
    write_to(Place::host());
  }
  void write_to(Place place) {
    const std::string name = place.name();
    if (!tensors_.contains(name)) tensors_.emplace(name, make(*client_, name));
    const Result<Lease> written = lease(*client_, tensors_.at(name), Mode::kOverwrite, place);
    ASSERT_TRUE(written) << written.error().message;
    if (place == Place::host())
      fill(written->writable_bytes(), 1, 4);
    else
      write(*written, 4);
  }
  void restart() {
    const std::uint64_t before = client_->reconnects();
    ASSERT_TRUE(daemon_->replace(SIGKILL));
    ASSERT_TRUE(eventually([&] { return client_->reconnects() > before; })) << daemon_->log();
  }
  // The next daemon serves nothing, and says why; the one after it does what the operator then asks for.
  void expect_held(const std::string& why) {
    ASSERT_TRUE(daemon_->replace(SIGKILL));
    std::string said;
    EXPECT_TRUE(eventually([&] { return has(said = daemon_->administer("status").said, "does not serve"); }))
        << said << daemon_->log();
    EXPECT_TRUE(has(said, why)) << said;
    EXPECT_TRUE(has(said, "take_back = \"give_up\"")) << said;
  }
  void go_on() {
    const std::uint64_t before = client_->reconnects();
    ASSERT_TRUE(daemon_->replace(SIGTERM));
    ASSERT_TRUE(eventually([&] { return client_->reconnects() > before; })) << daemon_->log();
  }
  void give_up() {
    CudaFailures::give_up(*daemon_);
    go_on();
  }
  std::string trouble(Place place) {
    const Result<Lease> read = lease(*client_, tensors_.at(place.name()), Mode::kRead, Place::host());
    if (!read) return read.error().message;
    return first_difference(read->bytes(), 1, 4) == read->bytes().size() ? "" : "it has other bytes";
  }
  // It alone is not served, and what was there is lost.
  void expect_gone(std::uint32_t gpu, const std::string& why) {
    EXPECT_TRUE(has(failure_of(*daemon_, gpu), why)) << failure_of(*daemon_, gpu);
    EXPECT_TRUE(has(trouble(Place::device(gpu)), "are lost with device:" + std::to_string(gpu)))
        << trouble(Place::device(gpu));
    EXPECT_EQ(trouble(Place::host()), "");
    const auto refused = lease(*client_, tensors_.at("host"), Mode::kRead, Place::device(gpu));
    ASSERT_FALSE(refused);
    EXPECT_TRUE(has(refused.error().message, "does not serve")) << refused.error().message;
  }
  void expect_good(std::uint32_t gpu) {
    EXPECT_EQ(failure_of(*daemon_, gpu), "");
    EXPECT_EQ(trouble(Place::device(gpu)), "");
    write_to(Place::device(gpu));
    EXPECT_EQ(trouble(Place::device(gpu)), "");
  }

  std::optional<Terraced> daemon_;
  std::optional<Client> client_;
  std::map<std::string, Tensor> tensors_;
};

TEST_F(CudaMissing, OneThatCannotBeAskedIsAsLargeAsItWas) {
  serve("cuda:all");
  control.lost[1] = cuda::kEccUncorrectable;
  control.device_bytes = 2 * kGpuBytes;  // by which two percent of the other one would be another size
  restart();
  expect_gone(1, kRetainFailed);
  expect_good(0);
  EXPECT_EQ(daemon_->status()["tiers"][1]["capacity_bytes"].get<std::uint64_t>(), 8 * kMiB);
}

TEST_F(CudaMissing, OneThatIsNotGivenAnyMoreIsWaitedFor) {
  serve("cuda:all");
  control.device_count = 1;
  expect_held("is not there any more: the CUDA driver gives this process 1");
  control.device_count = 2;
  go_on();
  for (const std::uint32_t gpu : {0U, 1U}) expect_good(gpu);
}

TEST_F(CudaMissing, OneThatWasLostBeforeIsWaitedForByNobody) {
  serve("cuda:all");
  const Result<Lease> held = lease(*client_, tensors_.at(Place::device(1).name()), Mode::kWrite, Place::device(1));
  ASSERT_TRUE(held) << held.error().message;
  control.lost[1] = cuda::kEccUncorrectable;
  EXPECT_FALSE(lease(*client_, make(*client_, "by which it is found out"), Mode::kOverwrite, Place::device(1)));
  control.lost[1] = 0;
  control.device_count = 1;
  restart();
  EXPECT_TRUE(has(failure_of(*daemon_, 1), "is not there any more")) << failure_of(*daemon_, 1);
  expect_good(0);
}

TEST_F(CudaMissing, UntilItIsGivenUp) {
  serve("cuda:all");
  control.device_count = 1;
  expect_held("device:1 cannot take back just now");
  give_up();
  expect_gone(1, "is not there any more: the CUDA driver gives this process 1");
  expect_good(0);
  control.device_count = 2;
  restart();
  write_to(Place::device(1));
  for (const std::uint32_t gpu : {0U, 1U}) expect_good(gpu);
}

TEST_F(CudaMissing, OneThatIsNamedIsWaitedForToo) {
  serve("cuda:1");
  control.device_count = 1;
  expect_held("is not there any more: the CUDA driver gives this process 1");
  give_up();
  expect_gone(0, "is not there any more: the CUDA driver gives this process 1");
}

TEST_F(CudaMissing, OthersThatGetItsNumberKeepTheirTier) {
  serve("cuda:all");
  control.absent = 1;
  expect_held("device:0 cannot take back just now");
  give_up();
  expect_gone(0, "is not there any more");
  expect_good(1);
}

TEST_F(CudaMissing, AllOfThemAreNotEmulated) {
  serve("auto");
  control.device_count = fake_cuda::kDevicesMax + 1;
  expect_held("cuInit: CUDA_ERROR_NO_DEVICE (100)");
  give_up();
  for (const std::uint32_t gpu : {0U, 1U}) expect_gone(gpu, "cuInit: CUDA_ERROR_NO_DEVICE (100)");
}

TEST_F(CudaMissing, ADriverThatFailsHasAsManyAsBefore) {
  serve("cuda:all");
  set_fault(control, Call::kInit, cuda::kSystemDriverMismatch, 1000);
  expect_held("cuInit: CUDA error (803)");
  set_fault(control, Call::kInit, 0);
  go_on();
  for (const std::uint32_t gpu : {0U, 1U}) expect_good(gpu);
}

TEST_F(CudaMissing, OnesOfUnlikeSizesMayChangeTheirNumbers) {
  control.device_bytes = 2 * kGpuBytes;
  control.halved = 2;  // the second
  for (auto& used : control.used_bytes) used = 0;
  serve("cuda:all");
  control.reversed = 1;
  restart();
  for (const std::uint32_t gpu : {0U, 1U}) expect_good(gpu);
  EXPECT_EQ(daemon_->status()["tiers"][0]["capacity_bytes"].get<std::uint64_t>(), 16 * kMiB);
  EXPECT_EQ(daemon_->status()["tiers"][1]["capacity_bytes"].get<std::uint64_t>(), 8 * kMiB);
}

TEST_F(CudaMissing, ATierThatFitsItsGpuAloneFitsItWhateverItsNumber) {
  control.halved = 2;
  serve("cuda:0", "capacity = \"300MiB\"");
  control.reversed = 1;  // by which cuda:0 has 200 MiB
  restart();
  expect_good(0);
}

TEST_F(CudaMissing, OnesThatCameLaterAreUsedLater) {
  control.device_count = 1;
  serve("auto");
  control.device_count = 2;
  restart();
  expect_good(0);
  EXPECT_EQ(daemon_->status()["tiers"].size(), 3U);
  EXPECT_TRUE(has(daemon_->log(), "there are 2 GPUs where a former daemon had 1")) << daemon_->log();
  client_.reset();
  tensors_.clear();
  EXPECT_TRUE(eventually([&] { return daemon_->status()["sessions"].empty(); }));
  ASSERT_TRUE(daemon_->replace(SIGTERM));
  EXPECT_TRUE(eventually([&] { return has(daemon_->administer("status").said, "device:1"); })) << daemon_->log();
}

}  // namespace
}  // namespace terrace::e2e
