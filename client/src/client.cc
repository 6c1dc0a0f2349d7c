// SPDX-License-Identifier: Apache-2.0
#include "terrace/client.h"

#include <utility>

#include "session.h"

namespace terrace {

using client::Session;
using shm::Operation;

struct Client::State {
  Session* session = nullptr;
  std::unique_ptr<std::thread> reader;
  std::string socket;
};

namespace {

std::unexpected<Error> closed() { return fail(ErrorCode::kFailedPrecondition, "the client is closed: connect again"); }

template <typename T>
Pending<T> closed_pending() {
  class Closed : public client::AnswerSource<T> {
    bool ready() override { return true; }
    Result<T> wait(std::chrono::nanoseconds) override { return closed(); }
  };
  return Pending<T>(std::make_unique<Closed>());
}

}  // namespace

Result<Client> Client::connect(ConnectOptions options) {
  Result<Session::Opened> opened = Session::open(options);
  if (!opened) return std::unexpected(opened.error());
  auto state = std::make_unique<State>();
  state->session = opened->session;
  state->reader = std::move(opened->reader);
  state->socket = opened->session->path();
  return Client(std::move(state));
}

Client::Client(std::unique_ptr<State> state) : state_(std::move(state)) {}
Client::Client(Client&& other) noexcept : state_(std::move(other.state_)) {}
Client& Client::operator=(Client&& other) noexcept {
  if (this != &other) {
    close();
    state_ = std::move(other.state_);
  }
  return *this;
}
Client::~Client() { close(); }

void Client::close() {
  if (state_ == nullptr || state_->session == nullptr) return;
  Session* const session = std::exchange(state_->session, nullptr);
  if (session->forked()) {
    static_cast<void>(state_->reader.release());  // a thread of the parent's: neither to be joined nor detached here
    return;
  }
  if (session->unreference()) {
    state_->reader->join();
  } else {
    state_->reader->detach();  // ends with the last lease
  }
  state_->reader.reset();
}

Session* Client::live() const { return state_ == nullptr ? nullptr : state_->session; }

Result<std::vector<Tensor>> Client::create(std::span<const TensorSpec> specs, std::chrono::nanoseconds timeout) {
  if (live() == nullptr) return closed();
  return live()->create(specs, timeout);
}

Result<Tensor> Client::create(const TensorSpec& spec, std::chrono::nanoseconds timeout) {
  Result<std::vector<Tensor>> tensors = create({&spec, 1}, timeout);
  if (!tensors) return std::unexpected(tensors.error());
  return tensors->front();
}

Result<Lease> Client::acquire(const Tensor& tensor, const LeaseOptions& options) {
  if (live() == nullptr) return closed();
  return live()->acquire(tensor, options);
}

Result<std::vector<Lease>> Client::acquire(std::span<const Tensor> tensors, const LeaseOptions& options) {
  if (live() == nullptr) return closed();
  return live()->acquire(tensors, options);
}

Pending<std::vector<Lease>> Client::acquire_async(std::span<const Tensor> tensors, const LeaseOptions& options) {
  if (live() == nullptr) return closed_pending<std::vector<Lease>>();
  return live()->acquire_async(tensors, options);
}

Result<void> Client::ask(Operation operation, std::span<const Tensor> tensors, std::uint32_t place,
                         std::chrono::nanoseconds timeout) {
  if (live() == nullptr) return closed();
  return live()->ask(tensors, {.operation = operation, .place = place, .timeout = timeout});
}

Pending<void> Client::move_async(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  if (live() == nullptr) return closed_pending<void>();
  return live()->ask_async(tensors, {.operation = Operation::kMove, .place = place.number(), .timeout = timeout});
}

Result<void> Client::destroy(std::span<const Tensor> tensors, std::chrono::nanoseconds timeout) {
  return ask(Operation::kDelete, tensors, 0, timeout);
}
Result<void> Client::swap_in(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return ask(Operation::kMove, tensors, place.number(), timeout);
}
Result<void> Client::swap_out(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return ask(Operation::kMove, tensors, place.number(), timeout);
}
Pending<void> Client::swap_in_async(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return move_async(tensors, place, timeout);
}
Pending<void> Client::swap_out_async(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return move_async(tensors, place, timeout);
}
Result<void> Client::prefetch(std::span<const Tensor> tensors, Place place) {
  return ask(Operation::kPrefetch, tensors, place.number(), kTimeoutDefault);
}
Result<void> Client::evict(std::span<const Tensor> tensors) {
  return ask(Operation::kEvict, tensors, 0, kTimeoutDefault);
}
Result<void> Client::dont_need(std::span<const Tensor> tensors) {
  return ask(Operation::kDontNeed, tensors, 0, kTimeoutDefault);
}
Result<void> Client::pin(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return ask(Operation::kPin, tensors, place.number(), timeout);
}
Result<void> Client::unpin(std::span<const Tensor> tensors) {
  return ask(Operation::kUnpin, tensors, 0, kTimeoutDefault);
}

Result<void> Client::mark_step(StepKind kind) {
  if (live() == nullptr) return closed();
  return live()->ask({}, {.operation = Operation::kMarkStep, .value = static_cast<std::uint64_t>(kind)});
}

std::uint32_t Client::session() const { return live() == nullptr ? 0 : live()->id(); }
const std::string& Client::socket() const {
  static const std::string none;
  return state_ == nullptr ? none : state_->socket;
}
std::vector<PlaceOffer> Client::places() const {
  return live() == nullptr ? std::vector<PlaceOffer>() : live()->offers();
}
std::uint64_t Client::held() const { return live() == nullptr ? 0 : live()->references() - 1; }

}  // namespace terrace
