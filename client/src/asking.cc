// SPDX-License-Identifier: Apache-2.0
// Requests to the daemon about tensors, and the answers that are waited for later.
#include <algorithm>
#include <string>
#include <utility>

#include "answers.h"
#include "session.h"

namespace terrace::client {

bool Session::owns(const Tensor& tensor) const {
  return tensor.record().serial == serial_ && static_cast<std::uint32_t>(tensor.handle()) < region_.table.size();
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
  return create_async(specs, timeout).wait(std::chrono::nanoseconds::max());
}

Pending<std::vector<Tensor>> Session::create_async(std::span<const TensorSpec> specs,
                                                   std::chrono::nanoseconds timeout) {
  const auto refused = [](const Error& error) {
    return Pending<std::vector<Tensor>>(std::make_unique<KnownAnswer<std::vector<Tensor>>>(std::unexpected(error)));
  };
  if (Result<void> usable_now = usable(); !usable_now) return refused(usable_now.error());
  std::vector<TensorSpec> whole;
  whole.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    Result<TensorSpec> completed = complete(spec);
    if (!completed) return refused(completed.error());
    whole.push_back(std::move(*completed));
  }
  return Pending<std::vector<Tensor>>(std::make_unique<TensorsAnswer>(*this, std::move(whole), timeout));
}

Result<std::vector<Tensor>> Session::find(std::span<const std::string> names, std::chrono::nanoseconds timeout) {
  if (Result<void> usable_now = usable(); !usable_now) return std::unexpected(usable_now.error());
  std::vector<Tensor> tensors;
  while (tensors.size() < names.size()) {
    std::vector<shm::CreateRecord> records;
    for (const std::string& name :
         names.subspan(tensors.size()).first(std::min<std::size_t>(names.size() - tensors.size(), shm::kCreateMax))) {
      shm::CreateRecord& record = records.emplace_back();
      if (name.size() >= record.name.size())
        return fail(ErrorCode::kNotFound, "there is no tensor \"" + name + "\": a name has at most " +
                                              std::to_string(record.name.size() - 1) + " bytes");
      std::ranges::copy(name, record.name.begin());
    }
    const std::vector<std::uint64_t> room(records.size());
    const auto call =
        submit({.operation = shm::Operation::kFind, .timeout = timeout, .handles = room, .records = records});
    if (!call) return std::unexpected(call.error());
    if (Result<void> found = finish(*call); !found) return std::unexpected(found.error());
    for (std::size_t i = 0; i < records.size(); ++i) {
      Result<TensorSpec> spec = complete(from_wire((*call)->records[i]));
      if (!spec) return std::unexpected(spec.error());
      tensors.push_back(make_tensor(std::move(*spec), (*call)->handles[i]));
    }
  }
  return tensors;
}

Tensor Session::make_tensor(TensorSpec spec, std::uint64_t handle) const {
  return Tensor(
      std::make_shared<const TensorRecord>(TensorRecord{.spec = std::move(spec), .handle = handle, .serial = serial_}));
}

Result<void> Session::ask(std::span<const Tensor> tensors, const Order& order) {
  const Result<std::shared_ptr<Call>> call = submit_order(tensors, order, true);
  if (!call) return std::unexpected(call.error());
  return finish(*call);
}

Pending<void> Session::ask_async(std::span<const Tensor> tensors, const Order& order) {
  Result<std::shared_ptr<Call>> call = submit_order(tensors, order, false);
  if (!call) return Pending<void>(std::make_unique<KnownAnswer<void>>(std::unexpected(call.error())));
  return Pending<void>(std::make_unique<DoneAnswer>(*this, std::move(*call)));
}

Result<std::shared_ptr<Call>> Session::submit_order(std::span<const Tensor> tensors, const Order& order,
                                                    bool waits_for_room) {
  const Result<std::vector<std::uint64_t>> handles = handles_of(tensors);
  if (!handles) return std::unexpected(handles.error());
  if (Result<void> live = check_lives(tensors); !live) return std::unexpected(live.error());
  return submit({.operation = order.operation,
                 .mode = order.mode,
                 .place = order.place,
                 .value = order.value,
                 .timeout = order.timeout,
                 .handles = *handles,
                 .waits_for_room = waits_for_room});
}

CallAnswer::CallAnswer(Session& session, std::shared_ptr<Call> call) : session_(session), call_(std::move(call)) {
  session_.hold();
}

CallAnswer::~CallAnswer() {
  if (session_.forked()) return;
  if (call_ != nullptr) session_.abandon(call_);
  session_.let_go();
}

bool CallAnswer::ready(std::chrono::nanoseconds timeout) {
  return call_ == nullptr || session_.forked() || session_.settled(call_, deadline_after(timeout));
}

Result<void> CallAnswer::take() {
  if (Result<void> usable_now = session_.usable(); !usable_now) return usable_now;
  if (call_ == nullptr) return taken_already();
  return session_.take(std::exchange(call_, nullptr));
}

SettledFirst::SettledFirst(Session& session, std::vector<Tensor> tensors, const LeaseOptions& options)
    : session_(session), tensors_(std::move(tensors)), options_(options), deadline_(deadline_after(options.timeout)) {
  session_.hold();
}

SettledFirst::~SettledFirst() {
  asked_.reset();
  if (!session_.forked()) session_.let_go();
}

bool SettledFirst::ready(std::chrono::nanoseconds timeout) {
  if (session_.forked() || wrong_) return true;
  const auto left = [](Deadline until) {
    return std::max(std::chrono::nanoseconds(until - std::chrono::steady_clock::now()), std::chrono::nanoseconds(0));
  };
  const Deadline asked_until = deadline_after(timeout);
  if (!asked_) {
    const Deadline until = std::min(asked_until, deadline_);
    const Result<void> settled = session_.settle(tensors_, left(until));
    if (!settled && settled.error().code == ErrorCode::kDeadlineExceeded && left(deadline_) > left(until)) return false;
    if (!settled) {
      wrong_ = settled.error();
      return true;
    }
    options_.timeout = left(deadline_);
    asked_ = session_.acquire_async(tensors_, options_);
  }
  return asked_->ready(left(asked_until));
}

Result<std::vector<Lease>> SettledFirst::take() {
  if (Result<void> usable_now = session_.usable(); !usable_now) return std::unexpected(usable_now.error());
  if (wrong_) return std::unexpected(*wrong_);
  return asked_ ? asked_->wait({}) : taken_already();
}

Result<std::vector<Lease>> LeasesAnswer::take() {
  if (Result<void> granted = call_.take(); !granted) return std::unexpected(granted.error());
  return call_.session().make_leases(tensors_, options_);
}

TensorsAnswer::TensorsAnswer(Session& session, std::vector<TensorSpec> specs, std::chrono::nanoseconds timeout)
    : session_(session), specs_(std::move(specs)), timeout_(timeout) {
  session_.hold();
  if (!finished()) ask_next();
}

TensorsAnswer::~TensorsAnswer() {
  if (session_.forked()) return;
  destroy();
  under_way_.reset();
  session_.let_go();
}

bool TensorsAnswer::ready(std::chrono::nanoseconds timeout) {
  const Deadline deadline = deadline_after(timeout);
  while (!finished()) {
    if (!under_way_->ready(deadline - std::chrono::steady_clock::now())) return false;
    collect();
  }
  return true;
}

Result<std::vector<Tensor>> TensorsAnswer::take() {
  if (Result<void> usable_now = session_.usable(); !usable_now) return std::unexpected(usable_now.error());
  if (std::exchange(taken_, true)) return taken_already();
  if (!wrong_) return std::exchange(created_, {});
  destroy();
  return std::unexpected(*wrong_);
}

void TensorsAnswer::ask_next() {
  std::vector<shm::CreateRecord> records;
  const auto left = std::span(specs_).subspan(created_.size());
  for (const TensorSpec& spec : left.first(std::min<std::size_t>(left.size(), shm::kCreateMax))) {
    records.push_back(to_wire(spec));
  }
  Result<std::shared_ptr<Call>> call = session_.submit(
      {.operation = shm::Operation::kCreate, .timeout = timeout_, .records = records, .waits_for_room = false});
  if (!call) {
    wrong_ = call.error();
    return;
  }
  call_ = *call;
  under_way_ = std::make_unique<CallAnswer>(session_, std::move(*call));
}

void TensorsAnswer::collect() {
  if (Result<void> done = under_way_->take(); !done) {
    wrong_ = done.error();
    return;
  }
  for (const std::uint64_t handle : call_->handles) {
    created_.push_back(session_.make_tensor(std::move(specs_[created_.size()]), handle));
  }
  if (!finished()) ask_next();
}

void TensorsAnswer::destroy() {
  for (std::span<const Tensor> left(created_); !left.empty();) {
    std::vector<std::uint64_t> handles;
    for (const Tensor& tensor : left.first(std::min<std::size_t>(left.size(), shm::kSetMax))) {
      handles.push_back(tensor.handle());
    }
    left = left.subspan(handles.size());
    session_.calls_.destroy(std::move(handles));
  }
  if (!created_.empty()) session_.wake_reader();
  created_.clear();
}

}  // namespace terrace::client
