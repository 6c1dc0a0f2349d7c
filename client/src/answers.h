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
  bool ready(std::chrono::nanoseconds) override { return true; }
  Result<T> take() override {
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

  bool ready(std::chrono::nanoseconds timeout);
  // Once ready.
  Result<void> take();
  Session& session() { return session_; }

 private:
  Session& session_;
  std::shared_ptr<Call> call_;  // null once its answer was taken
};

class DoneAnswer : public AnswerSource<void> {
 public:
  DoneAnswer(Session& session, std::shared_ptr<Call> call) : call_(session, std::move(call)) {}
  bool ready(std::chrono::nanoseconds timeout) override { return call_.ready(timeout); }
  Result<void> take() override { return call_.take(); }

 private:
  CallAnswer call_;
};

class LeasesAnswer : public AnswerSource<std::vector<Lease>> {
 public:
  LeasesAnswer(Session& session, std::shared_ptr<Call> call, std::vector<Tensor> tensors, const LeaseOptions& options)
      : call_(session, std::move(call)), tensors_(std::move(tensors)), options_(options) {}
  bool ready(std::chrono::nanoseconds timeout) override { return call_.ready(timeout); }
  Result<std::vector<Lease>> take() override;

 private:
  CallAnswer call_;
  std::vector<Tensor> tensors_;
  LeaseOptions options_;
};

// Leases that are asked for once the overwrites of the same tensors that were given up are settled.
class SettledFirst : public AnswerSource<std::vector<Lease>> {
 public:
  SettledFirst(Session& session, std::vector<Tensor> tensors, const LeaseOptions& options);
  SettledFirst(const SettledFirst&) = delete;
  SettledFirst& operator=(const SettledFirst&) = delete;
  ~SettledFirst() override;
  bool ready(std::chrono::nanoseconds timeout) override;
  Result<std::vector<Lease>> take() override;

 private:
  Session& session_;
  std::vector<Tensor> tensors_;
  LeaseOptions options_;
  Deadline deadline_;
  std::optional<Pending<std::vector<Lease>>> asked_;
  std::optional<Error> wrong_;
};

// Tensors, asked for run by run: all of them, or none.
class TensorsAnswer : public AnswerSource<std::vector<Tensor>> {
 public:
  // `specs` are complete.
  TensorsAnswer(Session& session, std::vector<TensorSpec> specs, std::chrono::nanoseconds timeout);
  TensorsAnswer(const TensorsAnswer&) = delete;
  TensorsAnswer& operator=(const TensorsAnswer&) = delete;
  ~TensorsAnswer() override;
  bool ready(std::chrono::nanoseconds timeout) override;
  Result<std::vector<Tensor>> take() override;

 private:
  bool finished() const { return taken_ || wrong_ || created_.size() == specs_.size(); }
  void ask_next();
  void collect();
  // What was created for nobody.
  void destroy();

  Session& session_;
  std::vector<TensorSpec> specs_;
  std::chrono::nanoseconds timeout_;
  std::shared_ptr<Call> call_;
  std::unique_ptr<CallAnswer> under_way_;  // of call_
  std::vector<Tensor> created_;
  std::optional<Error> wrong_;
  bool taken_ = false;
};

}  // namespace terrace::client
