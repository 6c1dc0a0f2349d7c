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
  virtual bool ready() = 0;
  virtual Result<T> wait(std::chrono::nanoseconds timeout) = 0;
};
}  // namespace client

// Move-only. If it is dropped unanswered the request runs on, and leases that it brings are given back as they come.
// One thread at a time.
template <typename T>
class Pending {
 public:
  explicit Pending(std::unique_ptr<client::AnswerSource<T>> source) : source_(std::move(source)) {}

  // Whether wait() would return at once. Never blocks.
  bool ready() const { return source_ == nullptr || source_->ready(); }
  // Waits at most `timeout` for the answer and takes it. kDeadlineExceeded if the answer is not there by then: it can
  // be waited for again. kFailedPrecondition once it was taken.
  Result<T> wait(std::chrono::nanoseconds timeout) {
    if (source_ == nullptr) return fail(ErrorCode::kFailedPrecondition, "the answer was taken already");
    return source_->wait(timeout);
  }

 private:
  std::unique_ptr<client::AnswerSource<T>> source_;
};

}  // namespace terrace
