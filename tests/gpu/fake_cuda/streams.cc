// SPDX-License-Identifier: Apache-2.0
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <utility>

#include "gpu/fake_cuda/state.h"
#include "gpu/fake_cuda/turns.h"

namespace terrace::fake_cuda {
namespace {

int lost(int device) { return control().lost[static_cast<std::size_t>(device)].load(); }

void reach(EventState& event, std::uint64_t number, cuda::Status status) {
  {
    const std::lock_guard lock(event.mutex);
    event.reached = number;
    event.status = status;
  }
  event.changed.notify_all();
}

}  // namespace

cuda::Status status_of(const EventState& event) {
  if (const int status = lost(event.device)) return status;
  return event.reached < event.recorded ? cuda::kNotReady : event.status;
}

cuda::Status wait_for(EventState& event) {
  const auto status = [&event] {
    const std::lock_guard lock(event.mutex);
    return status_of(event);
  };
  if (Turns* const turns = Turns::taken()) {
    std::unique_lock lock(event.mutex);
    const StreamState* const stream = event.stream;
    lock.unlock();
    turns->wait(stream, [&] { return status() != cuda::kNotReady; });
    return status();
  }
  std::unique_lock lock(event.mutex);
  while (status_of(event) == cuda::kNotReady) event.changed.wait_for(lock, std::chrono::milliseconds(20));
  return status_of(event);
}

StreamState::StreamState(cuda::Context context) : context_(context) {
  control().streams.fetch_add(1);
  if (Turns* const turns = Turns::taken())
    turns->add(this);
  else
    thread_ = std::thread([this] { work(); });
}

StreamState::~StreamState() {
  if (!thread_.joinable()) {
    drain();
    Turns::taken()->remove(this);
  } else {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  control().streams.fetch_sub(1);
}

void StreamState::push(std::function<cuda::Status(cuda::Status)> task) { add({.run = std::move(task), .awaited = {}}); }

void StreamState::await(std::shared_ptr<EventState> event) {
  std::unique_lock lock(event->mutex);
  const std::uint64_t number = event->recorded;
  lock.unlock();
  add({.run = [](cuda::Status before) { return before; }, .awaited = std::move(event), .number = number});
}

void StreamState::record(const std::shared_ptr<EventState>& event) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    event->captured = capturing;
    event->stream = this;
    number = ++event->recorded;
  }
  push([event, number](cuda::Status before) {
    reach(*event, number, before);
    return cuda::kSuccess;
  });
}

void StreamState::add(Task task) {
  if (capturing) return;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  if (thread_.joinable())
    changed_.notify_all();
  else
    Turns::taken()->note();
}

bool StreamState::drained() const {
  const std::lock_guard lock(mutex_);
  return tasks_.empty() && !busy_;
}

void StreamState::drain() {
  if (!thread_.joinable()) {
    Turns::taken()->wait(this, [this] { return drained(); });
    return;
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return tasks_.empty() && !busy_; });
}

bool StreamState::reached(const Task& task) const {
  if (task.awaited == nullptr) return true;
  const std::lock_guard lock(task.awaited->mutex);
  return task.awaited->reached >= task.number || lost(task.awaited->device) != 0;
}

// A lost device lets nobody wait.
bool StreamState::held() const {
  const int device = device_of(context_);
  return (control().hold.load() >> device & 1) != 0 && lost(device) == 0;
}

bool StreamState::is_ready() const {
  const std::lock_guard lock(mutex_);
  return !tasks_.empty() && !busy_ && !held() && reached(tasks_.front());
}

std::shared_ptr<EventState> StreamState::awaited() const {
  const std::lock_guard lock(mutex_);
  return tasks_.empty() || reached(tasks_.front()) ? nullptr : tasks_.front().awaited;
}

void StreamState::run_first() {
  std::unique_lock lock(mutex_);
  Task task = std::move(tasks_.front());
  tasks_.pop_front();
  busy_ = true;
  lock.unlock();
  const int status = lost(device_of(context_));
  const cuda::Status after = task.run(status != 0 ? status : status_);
  task = {};  // what it holds goes before anybody hears that it has run
  lock.lock();
  status_ = after;
  busy_ = false;
}

void StreamState::work() {
  constexpr timespec kPatience{.tv_sec = 0, .tv_nsec = 5'000'000};
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task& first = tasks_.front();  // which only this thread takes away
    const auto event = first.awaited;
    lock.unlock();
    while (event != nullptr && !reached(first)) {
      std::unique_lock waiting(event->mutex);
      event->changed.wait_for(waiting, std::chrono::milliseconds(5));
    }
    while (held()) ::syscall(SYS_futex, &control().hold, FUTEX_WAIT, control().hold.load(), &kPatience, nullptr, 0);
    run_first();
    changed_.notify_all();
    lock.lock();
  }
}

}  // namespace terrace::fake_cuda
