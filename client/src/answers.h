// SPDX-License-Identifier: Apache-2.0
// Where pending answers come from.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "session.h"
#include "terrace/pending.h"

namespace terrace::client {

inline std::unexpected<Error> taken_already() {
  return fail(ErrorCode::kFailedPrecondition, "the answer was taken already");
}

// An answer that is there.
template <typename T>
class KnownAnswer : public AnswerSource<T> {
 public:
  explicit KnownAnswer(Result<T> answer) : answer_(std::move(answer)) {}
  bool ready() override { return true; }
  Result<T> wait(std::chrono::nanoseconds) override {
    if (!answer_) return taken_already();
    return *std::exchange(answer_, std::nullopt);
  }

 private:
  std::optional<Result<T>> answer_;
};

// A call under way, which keeps its session.
class CallAnswer {
 public:
  CallAnswer(Session& session, std::shared_ptr<Call> call);
  CallAnswer(const CallAnswer&) = delete;
  CallAnswer& operator=(const CallAnswer&) = delete;
  ~CallAnswer();

  bool ready();
  // Takes the answer to the call; kDeadlineExceeded leaves it to be taken later.
  Result<void> wait(Deadline deadline);
  Session& session() { return session_; }

 private:
  Session& session_;
  std::shared_ptr<Call> call_;  // null once its answer was taken
};

class DoneAnswer : public AnswerSource<void> {
 public:
  DoneAnswer(Session& session, std::shared_ptr<Call> call) : call_(session, std::move(call)) {}
  bool ready() override { return call_.ready(); }
  Result<void> wait(std::chrono::nanoseconds timeout) override { return call_.wait(deadline_after(timeout)); }

 private:
  CallAnswer call_;
};

class LeasesAnswer : public AnswerSource<std::vector<Lease>> {
 public:
  LeasesAnswer(Session& session, std::shared_ptr<Call> call, std::vector<Tensor> tensors, const LeaseOptions& options)
      : call_(session, std::move(call)), tensors_(std::move(tensors)), options_(options) {}
  bool ready() override { return call_.ready(); }
  Result<std::vector<Lease>> wait(std::chrono::nanoseconds timeout) override;

 private:
  CallAnswer call_;
  std::vector<Tensor> tensors_;
  LeaseOptions options_;
};

}  // namespace terrace::client
