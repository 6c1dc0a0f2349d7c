// SPDX-License-Identifier: Apache-2.0
// Requests to the daemon about tensors, and the answers that are waited for later.
#include <algorithm>
#include <string>
#include <utility>

#include "answers.h"
#include "session.h"

namespace terrace::client {

bool Session::owns(const Tensor& tensor) const {
  return tensor.record_->serial == serial_ && static_cast<std::uint32_t>(tensor.handle()) < region_.table.size();
}

Result<std::vector<std::uint64_t>> Session::handles_of(std::span<const Tensor> tensors) const {
  if (Result<void> usable_now = usable(); !usable_now) return std::unexpected(usable_now.error());
  if (tensors.size() > shm::kSetMax) {
    return fail(ErrorCode::kInvalidArgument, "a set of " + std::to_string(tensors.size()) + " tensors: at most " +
                                                 std::to_string(shm::kSetMax) + " can go together");
  }
  std::vector<std::uint64_t> handles;
  handles.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    if (!owns(tensor)) {
      return fail(ErrorCode::kInvalidArgument,
                  "tensor \"" + tensor.name() + "\" is not of this client: use the client that created it");
    }
    handles.push_back(tensor.handle());
  }
  return handles;
}

Result<std::shared_ptr<Call>> Session::submit(const Question& question) {
  return calls_.submit(question, deadline_after(question.timeout));
}

Result<std::vector<Tensor>> Session::create(std::span<const TensorSpec> specs, std::chrono::nanoseconds timeout) {
  if (Result<void> usable_now = usable(); !usable_now) return std::unexpected(usable_now.error());
  std::vector<Tensor> created;
  created.reserve(specs.size());
  while (created.size() < specs.size()) {
    const auto run =
        specs.subspan(created.size(), std::min<std::size_t>(specs.size() - created.size(), shm::kCreateMax));
    Result<std::vector<Tensor>> tensors = create_run(run, timeout);
    if (!tensors) {
      if (!created.empty()) static_cast<void>(ask(created, {.operation = shm::Operation::kDelete, .timeout = timeout}));
      return tensors;
    }
    created.insert(created.end(), tensors->begin(), tensors->end());
  }
  return created;
}

Result<std::vector<Tensor>> Session::create_run(std::span<const TensorSpec> specs, std::chrono::nanoseconds timeout) {
  std::vector<TensorSpec> whole;
  std::vector<shm::CreateRecord> records;
  whole.reserve(specs.size());
  records.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    Result<TensorSpec> completed = complete(spec);
    if (!completed) return std::unexpected(completed.error());
    records.push_back(to_wire(*completed));
    whole.push_back(std::move(*completed));
  }
  const Result<std::shared_ptr<Call>> call =
      submit({.operation = shm::Operation::kCreate, .timeout = timeout, .records = records});
  if (!call) return std::unexpected(call.error());
  if (Result<void> created = finish(*call, timeout); !created) return std::unexpected(created.error());
  std::vector<Tensor> tensors;
  tensors.reserve(specs.size());
  for (std::size_t i = 0; i < whole.size(); ++i) {
    tensors.push_back(Tensor(std::make_shared<const TensorRecord>(
        TensorRecord{.spec = std::move(whole[i]), .handle = (*call)->handles[i], .serial = serial_})));
  }
  return tensors;
}

Result<void> Session::ask(std::span<const Tensor> tensors, const Order& order) {
  const Result<std::shared_ptr<Call>> call = submit_order(tensors, order);
  if (!call) return std::unexpected(call.error());
  return finish(*call, order.timeout);
}

Pending<void> Session::ask_async(std::span<const Tensor> tensors, const Order& order) {
  Result<std::shared_ptr<Call>> call = submit_order(tensors, order);
  if (!call) return Pending<void>(std::make_unique<KnownAnswer<void>>(std::unexpected(call.error())));
  return Pending<void>(std::make_unique<DoneAnswer>(*this, std::move(*call)));
}

Result<std::shared_ptr<Call>> Session::submit_order(std::span<const Tensor> tensors, const Order& order) {
  const Result<std::vector<std::uint64_t>> handles = handles_of(tensors);
  if (!handles) return std::unexpected(handles.error());
  return submit({.operation = order.operation,
                 .place = order.place,
                 .value = order.value,
                 .timeout = order.timeout,
                 .handles = *handles});
}

CallAnswer::CallAnswer(Session& session, std::shared_ptr<Call> call) : session_(session), call_(std::move(call)) {
  session_.reference();
}

CallAnswer::~CallAnswer() {
  if (session_.forked()) return;
  if (call_ != nullptr) session_.abandon(call_);
  session_.unreference();
}

bool CallAnswer::ready() { return call_ == nullptr || session_.forked() || session_.calls_.ready(call_); }

Result<void> CallAnswer::wait(Deadline deadline) {
  if (Result<void> usable_now = session_.usable(); !usable_now) return usable_now;
  if (call_ == nullptr) return taken_already();
  if (!session_.calls_.wait(call_, deadline)) {
    return fail(ErrorCode::kDeadlineExceeded, "the answer is not there yet: wait again");
  }
  const std::shared_ptr<Call> answered = std::exchange(call_, nullptr);
  if (answered->error) return std::unexpected(*answered->error);
  return {};
}

Result<std::vector<Lease>> LeasesAnswer::wait(std::chrono::nanoseconds timeout) {
  if (Result<void> granted = call_.wait(deadline_after(timeout)); !granted) return std::unexpected(granted.error());
  const Deadline mapping = deadline_after(std::max<std::chrono::nanoseconds>(timeout, Session::kMappingTimeout));
  return call_.session().make_leases(tensors_, options_, mapping);
}

}  // namespace terrace::client
