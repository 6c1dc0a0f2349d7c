// SPDX-License-Identifier: Apache-2.0
// Shows what a successor does when a GPU is not as it was: what it has no room for just now is held until it has.
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

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

TEST_F(CudaHeld, WhatThereIsNoRoomForUntilThereIs) {
  for (const Call call : {Call::kRetain, Call::kStreamCreate, Call::kHostRegister, Call::kReserve, Call::kImport,
                          Call::kMap, Call::kSetAccess}) {
    SCOPED_TRACE(static_cast<int>(call));
    const std::uint64_t before = client_.reconnects();
    set_fault(control, call, cuda::kOutOfMemory, kAlways);
    const std::string said = held();
    EXPECT_TRUE(has(said, "device:0 has no room")) << said;
    EXPECT_TRUE(has(said, kNoRoom)) << said;
    EXPECT_TRUE(has(said, "4 tensors have bytes nowhere else; make room on that GPU")) << said;
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
  EXPECT_TRUE(has(said, "1 tensor has bytes nowhere else")) << said;
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

}  // namespace
}  // namespace terrace::e2e
