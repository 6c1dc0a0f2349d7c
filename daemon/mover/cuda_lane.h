// SPDX-License-Identifier: Apache-2.0
// One stream of a GPU: copies that run in order, and a thread that sleeps until they have.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "terrace/error.h"
#include "tier/device/cuda_context.h"

namespace terrace::mover {

// Who waits for copies; told on the reactor, from CudaLane::collect().
class CudaWaiter {
 public:
  virtual ~CudaWaiter() = default;
  virtual void copied(Result<void> result) = 0;
};

// Everything here is the reactor's. That copies have ended is asked for by one event for all that came while the event
// before it was awaited, so that many small ones cost few events, and a lone one none but its own. At most kBatchCopies
// or kBatchBytes share an event. Of these, copies that go on where the one before them ends, at both ends, are one
// copy.
class CudaLane {
 public:
  static constexpr std::size_t kBatchCopies = 32;
  static constexpr std::uint64_t kBatchBytes = 4 * std::uint64_t{1024} * 1024;

  // `priority`: as cuStreamCreateWithPriority's. `wake`: an eventfd, written to when there is something to collect.
  // Both `context` and `wake` outlive it.
  static Result<std::unique_ptr<CudaLane>> create(tier::CudaContext& context, int priority, int wake);
  // Nobody waits any more.
  ~CudaLane();
  CudaLane(const CudaLane&) = delete;
  CudaLane& operator=(const CudaLane&) = delete;

  // Begin a copy, at the latest as its event is recorded; an error means that it was not. All memory stays until
  // whoever awaits the copy is told. Ranges do not overlap. `room`: so many bytes of the host's memory, from the copy's
  // first on, lie within one registration (of cuMemHostRegister), as all of the copy does.
  Result<void> up(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t room);
  Result<void> down(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t room);
  Result<void> within(std::byte* to, const std::byte* from, std::uint64_t bytes);
  Result<void> zero(std::byte* to, std::uint64_t bytes);
  // Tells `waiter`, once, when all that was begun so far has ended. An error may be that of another copy near it: which
  // of them failed, the driver does not say.
  void await(CudaWaiter& waiter);

  // Tells whom there is something to tell.
  void collect();

 private:
  struct Batch {
    cuda::Event event = nullptr;  // null: none could be recorded, and `result` says why
    std::vector<CudaWaiter*> waiters;
    Result<void> result;  // of the copies, as far as it is known
  };
  // A copy between the host and the device that is not begun yet.
  struct Copy {
    bool up = false;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::uint64_t bytes = 0;  // 0: there is none
    std::uint64_t room = 0;
  };

  CudaLane(tier::CudaContext& context, int wake) : context_(context), wake_(wake) {}
  Result<void> begin(Result<void> result, std::uint64_t bytes);
  Result<void> join(const Copy& copy);
  void begin_joined();
  Result<void> record(cuda::Event& event);
  void close();
  void watch();

  tier::CudaContext& context_;
  const int wake_;
  cuda::Stream stream_ = nullptr;
  Batch open_;   // what no event was recorded for yet
  Copy joined_;  // the last of it
  std::uint64_t open_bytes_ = 0;
  std::size_t closed_ = 0;  // batches that are awaited
  std::vector<cuda::Event> free_events_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable ready_;
  std::deque<Batch> awaited_;
  std::vector<Batch> ended_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace terrace::mover
