// SPDX-License-Identifier: Apache-2.0
#include "front/reactor/mailbox.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/check.h"

namespace terrace::front {

Result<std::unique_ptr<Mailbox>> Mailbox::create(std::size_t jobs_max) {
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail(ErrorCode::kResourceExhausted, "no descriptor is left for the reactor's mailbox", errno);
  return std::unique_ptr<Mailbox>(new Mailbox(std::move(wake), jobs_max));
}

bool Mailbox::post(Job job) {
  const std::scoped_lock lock(mutex_);
  if (closed_ || jobs_.size() >= jobs_max_) return false;
  jobs_.push_back(std::move(job));
  if (jobs_.size() == 1) {
    const std::uint64_t one = 1;
    TERRACE_CHECK(write(wake_.get(), &one, sizeof one) == sizeof one || errno == EAGAIN);
  }
  return true;
}

void Mailbox::run() {
  std::uint64_t count = 0;
  static_cast<void>(read(wake_.get(), &count, sizeof count));
  std::vector<Job> jobs;
  {
    const std::scoped_lock lock(mutex_);
    jobs.swap(jobs_);
  }
  for (Job& job : jobs) job();
}

void Mailbox::close() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  run();
}

}  // namespace terrace::front
