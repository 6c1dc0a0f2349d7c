// SPDX-License-Identifier: Apache-2.0
// An answer that is on its way.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "terrace/error.h"

namespace terrace {

namespace client {
// Where a Pending gets its answer; the library's own.
template <typename T>
class AnswerSource {
 public:
  AnswerSource() = default;
  AnswerSource(const AnswerSource&) = delete;
  AnswerSource& operator=(const AnswerSource&) = delete;
  virtual ~AnswerSource() = default;
  // Waits at most `timeout` until take() can be called.
  virtual bool ready(std::chrono::nanoseconds timeout) = 0;
  // Once ready.
  virtual Result<T> take() = 0;
};
}  // namespace client

// Move-only. If it is dropped unanswered the request runs on, and leases that it brings are given back as they come: of
// an overwrite the tensor is torn then, so that who leases it next waits, as long as their call may take, until that
// one is granted or refused. An answer that is overdue (the daemon does not run), or whose client was closed, is there:
// an error. One thread at a time.
template <typename T>
class Pending {
 public:
  explicit Pending(std::unique_ptr<client::AnswerSource<T>> source) : source_(std::move(source)) {}

  // Waits at most `timeout` until the answer is there, and takes nothing: wait() then returns it at once.
  bool ready(std::chrono::nanoseconds timeout = {}) const { return source_ == nullptr || source_->ready(timeout); }
  // Waits at most `timeout` for the answer and takes it. kDeadlineExceeded if the answer is not there by then: it can
  // be waited for again. That is also what the answer itself can be: to tell them apart, wait with ready().
  // kFailedPrecondition once it was taken.
  Result<T> wait(std::chrono::nanoseconds timeout) {
    if (source_ == nullptr) return fail(ErrorCode::kFailedPrecondition, "the answer was taken already");
    if (!source_->ready(timeout)) return fail(ErrorCode::kDeadlineExceeded, "the answer is not there yet: wait again");
    return source_->take();
  }

 private:
  std::unique_ptr<client::AnswerSource<T>> source_;
};

}  // namespace terrace
