// SPDX-License-Identifier: Apache-2.0
// How other threads reach the reactor: a bounded queue of jobs and an eventfd that the reactor's ring polls.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "terrace/error.h"

namespace terrace::front {

class Mailbox {
 public:
  using Job = std::move_only_function<void()>;

  // Holds at most `jobs_max` jobs that wait.
  static Result<std::unique_ptr<Mailbox>> create(std::size_t jobs_max);

  // Any thread. False, and nothing done, when it is full or closed.
  bool post(Job job);
  // Reactor thread: runs what waits, in order.
  void run();
  // Reactor thread: runs what waits a last time; from then on post() returns false.
  void close();

  // Readable when jobs wait.
  int descriptor() const { return wake_.get(); }

 private:
  Mailbox(Fd wake, std::size_t jobs_max) : wake_(std::move(wake)), jobs_max_(jobs_max) {}

  Fd wake_;
  const std::size_t jobs_max_;
  std::mutex mutex_;
  std::vector<Job> jobs_;
  bool closed_ = false;
};

}  // namespace terrace::front
