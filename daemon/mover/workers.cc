// SPDX-License-Identifier: Apache-2.0
#include "mover/workers.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace terrace::mover {
namespace {

// Signals are the main thread's: a thread inherits the mask that is set while it is created.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

// A wish: where it is refused (a container's cpuset), the thread runs wherever it may.
void pin(std::jthread& thread, const std::vector<unsigned>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const unsigned processor : processors) {
    if (processor < CPU_SETSIZE) CPU_SET(processor, &set);
  }
  if (CPU_COUNT(&set) > 0) pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

unsigned processors() { return std::max(1U, std::thread::hardware_concurrency()); }

unsigned copiers_wanted(unsigned configured) {
  if (configured == 0) configured = std::max(1U, processors() / 2);
  return std::min(configured, Workers::kCopiersMax);
}

unsigned pinners_wanted(const Workers::Options& options) {
  const auto near = static_cast<unsigned>(options.pinner_processors.size());
  const unsigned possible = near == 0 ? processors() : near;
  return std::min(options.pinners == 0 ? possible : options.pinners, Workers::kPinnersMax);
}

}  // namespace

void Workers::Queue::push(Job& job) {
  job.next_ = nullptr;
  if (first == nullptr) {
    first = &job;
  } else {
    last->next_ = &job;
  }
  last = &job;
}

Job* Workers::Queue::pop() {
  Job* job = first;
  if (job != nullptr) first = std::exchange(job->next_, nullptr);
  return job;
}

Result<std::unique_ptr<Workers>> Workers::create(const Options& options) {
  std::unique_ptr<Workers> workers(new Workers(options));
  if (auto started = workers->start(); !started) return std::unexpected(std::move(started.error()));
  return workers;
}

Result<void> Workers::start_thread(Queue& queue, const char* name, const std::vector<unsigned>& processors) {
  const SignalsBlocked blocked;
  try {
    std::jthread& thread = threads_.emplace_back([this, &queue] { work(queue); });
    pthread_setname_np(thread.native_handle(), name);
    pin(thread, processors);
  } catch (const std::system_error& error) {
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("starting the thread {} after {} others: {}; allow more threads or configure fewer workers",
                            name, threads_.size(), error.what()),
                error.code().value());
  }
  return {};
}

Result<void> Workers::start() {
  wake_ = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) {
    return fail(ErrorCode::kResourceExhausted, fmt::format("eventfd for the workers: {}", std::strerror(errno)), errno);
  }
  const auto& nodes = options_.node_processors;
  const unsigned wanted = copiers_wanted(options_.copiers);
  for (; copiers_ < wanted; ++copiers_) {
    const bool bound = nodes.size() > 1;
    const auto started =
        start_thread(copies_, "terrace-copy", bound ? nodes[copiers_ % nodes.size()] : std::vector<unsigned>{});
    if (!started) return started;
  }
  return start_thread(segments_, "terrace-segment", {});
}

Result<void> Workers::start_pinners() {
  for (const unsigned wanted = pinners_wanted(options_); pinners_ < wanted; ++pinners_)
    if (auto started = start_thread(pins_, "terrace-pin", options_.pinner_processors); !started) return started;
  return {};
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  for (Queue* queue : {&copies_, &segments_, &pins_}) queue->ready.notify_all();
  threads_.clear();
}

void Workers::work(Queue& queue) {
  std::unique_lock lock(mutex_);
  while (true) {
    queue.ready.wait(lock, [&] { return stop_ || queue.first != nullptr; });
    if (stop_) return;
    Job* job = queue.pop();
    lock.unlock();
    job->run();
    lock.lock();
    const bool wake = finished_.first == nullptr;
    finished_.push(*job);
    if (--unfinished_ == 0) finished_.ready.notify_all();
    if (wake) {
      lock.unlock();  // whom it wakes takes the lock at once
      const std::uint64_t one = 1;
      TERRACE_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
      lock.lock();
    }
  }
}

void Workers::submit(Job& job, Lane lane) {
  Queue& queue = lane == Lane::kCopy ? copies_ : lane == Lane::kSegment ? segments_ : pins_;
  {
    const std::lock_guard lock(mutex_);
    queue.push(job);
    ++unfinished_;
  }
  queue.ready.notify_one();
}

std::size_t Workers::collect() {
  Job* job = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t rings = 0;
    TERRACE_CHECK(read(wake_.get(), &rings, sizeof(rings)) == sizeof(rings) || errno == EAGAIN);
    job = std::exchange(finished_.first, nullptr);
  }
  std::size_t count = 0;
  while (job != nullptr) {
    Job* next = std::exchange(job->next_, nullptr);
    job->done();  // may submit it again, or end it
    job = next;
    ++count;
  }
  return count;
}

void Workers::wait_idle() {
  std::unique_lock lock(mutex_);
  finished_.ready.wait(lock, [&] { return unfinished_ == 0; });
}

}  // namespace terrace::mover
