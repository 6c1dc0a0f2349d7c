// SPDX-License-Identifier: Apache-2.0
#include "mover/cuda_lane.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <system_error>
#include <utility>

#include "base/check.h"

namespace terrace::mover {
namespace {

cuda::Pointer number(const std::byte* address) { return reinterpret_cast<std::uintptr_t>(address); }

}  // namespace

Result<std::unique_ptr<CudaLane>> CudaLane::create(tier::CudaContext& context, int priority, int wake) {
  std::unique_ptr<CudaLane> lane(new CudaLane(context, wake));
  const cuda::Current current(context.api(), context.context());
  Result<void> made = current.result();
  if (made) made = context.api().stream_create(&lane->stream_, cuda::kStreamNonBlocking, priority);
  if (!made) return std::unexpected(std::move(made.error()));
  try {
    lane->thread_ = std::thread([&lane = *lane] { lane.watch(); });
    pthread_setname_np(lane->thread_.native_handle(), "terrace-cuda");
  } catch (const std::system_error& error) {
    return fail(ErrorCode::kResourceExhausted, fmt::format("no thread for a CUDA stream: {}", error.what()),
                error.code().value());
  }
  return lane;
}

CudaLane::~CudaLane() {
  TERRACE_CHECK(open_.waiters.empty() && closed_ == 0);
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ready_.notify_all();
  if (thread_.joinable()) thread_.join();
  const cuda::Api& api = context_.api();
  for (cuda::Event event : free_events_) static_cast<void>(api.event_destroy.status(event));
  if (stream_ != nullptr) static_cast<void>(api.stream_destroy.status(stream_));
}

Result<void> CudaLane::begin(Result<void> result, std::uint64_t bytes) {
  if (result) open_bytes_ += bytes;
  return context_.noted(std::move(result));
}

Result<void> CudaLane::join(const Copy& copy) {
  if (const auto lost = context_.lost()) return std::unexpected(*lost);
  TERRACE_CHECK(copy.bytes <= copy.room);
  Copy& last = joined_;
  if (last.bytes > 0 && last.up == copy.up && last.to + last.bytes == copy.to && last.from + last.bytes == copy.from &&
      last.bytes + copy.bytes <= last.room) {
    last.bytes += copy.bytes;
  } else {
    begin_joined();
    last = copy;
  }
  open_bytes_ += copy.bytes;
  return {};
}

// An error is that of the open batch: those who await it were not told as they began.
void CudaLane::begin_joined() {
  const Copy copy = std::exchange(joined_, {});
  if (copy.bytes == 0) return;
  const cuda::Api& api = context_.api();
  const cuda::Current current(api, context_.context());
  auto begun = context_.noted(copy.up ? api.copy_up(number(copy.to), copy.from, copy.bytes, stream_)
                                      : api.copy_down(copy.to, number(copy.from), copy.bytes, stream_));
  if (!begun && open_.result) open_.result = std::move(begun);
}

Result<void> CudaLane::up(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t room) {
  return join({.up = true, .to = to, .from = from, .bytes = bytes, .room = room});
}

Result<void> CudaLane::down(std::byte* to, const std::byte* from, std::uint64_t bytes, std::uint64_t room) {
  return join({.up = false, .to = to, .from = from, .bytes = bytes, .room = room});
}

Result<void> CudaLane::within(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  if (const auto lost = context_.lost()) return std::unexpected(*lost);
  const cuda::Current current(context_.api(), context_.context());
  return begin(context_.api().copy_within(number(to), number(from), bytes, stream_), bytes);
}

Result<void> CudaLane::zero(std::byte* to, std::uint64_t bytes) {
  if (const auto lost = context_.lost()) return std::unexpected(*lost);
  const cuda::Current current(context_.api(), context_.context());
  return begin(context_.api().set_bytes(number(to), 0, bytes, stream_), bytes);
}

void CudaLane::await(CudaWaiter& waiter) {
  open_.waiters.push_back(&waiter);
  if (closed_ == 0 || open_bytes_ >= kBatchBytes || open_.waiters.size() >= kBatchCopies) close();
}

Result<void> CudaLane::record(cuda::Event& event) {
  if (const auto lost = context_.lost()) return std::unexpected(*lost);
  const cuda::Api& api = context_.api();
  const cuda::Current current(api, context_.context());
  if (free_events_.empty()) {
    auto made = api.event_create(&event, cuda::kEventBlockingSync | cuda::kEventDisableTiming);
    if (!made) return made;
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  auto recorded = api.event_record(event, stream_);
  if (!recorded) free_events_.push_back(std::exchange(event, nullptr));
  return recorded;
}

// Ends the open batch: its event, or why there is none.
void CudaLane::close() {
  begin_joined();
  const auto recorded = context_.noted(record(open_.event));
  // Without an event the copies may still be running, and their memory must not go. A lost device runs nothing.
  if (!recorded && !context_.lost()) static_cast<void>(context_.api().stream_synchronize.status(stream_));
  if (!recorded && open_.result) open_.result = recorded;
  open_bytes_ = 0;
  ++closed_;
  {
    const std::lock_guard lock(mutex_);
    awaited_.push_back(std::exchange(open_, {}));
  }
  ready_.notify_one();
}

// The lane's thread. The event was made to let it sleep.
void CudaLane::watch() {
  const cuda::Current current(context_.api(), context_.context());
  std::unique_lock lock(mutex_);
  while (true) {
    ready_.wait(lock, [this] { return stop_ || !awaited_.empty(); });
    if (awaited_.empty()) return;
    Batch batch = std::move(awaited_.front());
    awaited_.pop_front();
    lock.unlock();
    if (batch.event != nullptr) {
      const auto ended = context_.noted(context_.api().event_synchronize(batch.event));
      if (!ended && batch.result) batch.result = ended;
    }
    lock.lock();
    ended_.push_back(std::move(batch));
    const std::uint64_t one = 1;
    TERRACE_CHECK(write(wake_, &one, sizeof one) == sizeof one);
  }
}

void CudaLane::collect() {
  std::vector<Batch> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  for (Batch& batch : ended) {
    if (batch.event != nullptr) free_events_.push_back(batch.event);
    --closed_;
    for (CudaWaiter* waiter : batch.waiters) waiter->copied(batch.result);
  }
  if (closed_ == 0 && !open_.waiters.empty()) close();
}

}  // namespace terrace::mover
