// SPDX-License-Identifier: Apache-2.0
#include "terrace/client.h"

#include <algorithm>
#include <utility>

#include "answers.h"
#include "holders.h"
#include "session.h"
#include "shm/layout.h"
#include "stream_releases.h"

namespace terrace {

using client::client_closed;
using client::Session;
using shm::Operation;

struct Client::State {
  Session* session = nullptr;  // there while somebody holds it
  std::shared_ptr<client::Holders> holders;
  std::unique_ptr<std::thread> reader;
  std::string socket;
};

// The session, held for as long as this lives; nothing once the client is closed.
class Client::Use {
 public:
  explicit Use(State* state) : state_(state != nullptr && state->holders->enter() ? state : nullptr) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    if (state_ != nullptr) state_->holders->leave();
  }
  explicit operator bool() const { return state_ != nullptr; }
  Session* operator->() const { return state_->session; }
  Session& operator*() const { return *state_->session; }
  // To a lease.
  void hand_over() { state_ = nullptr; }

 private:
  State* state_;
};

namespace {

template <typename T>
Pending<T> closed_pending() {
  return Pending<T>(std::make_unique<client::KnownAnswer<T>>(client_closed()));
}

Result<void> declare_sets(client::Session& session, std::span<const DeclaredSet> sets, StepKind kind) {
  for (std::size_t at = 0; at < sets.size(); ++at) {
    const std::int64_t compute_us = std::clamp<std::int64_t>(sets[at].compute.count(), 0, UINT32_MAX);
    const shm::DeclaredValue value{static_cast<std::uint8_t>(kind), static_cast<std::uint32_t>(at),
                                   static_cast<std::uint32_t>(compute_us)};
    const auto heard = session.ask(sets[at].tensors, {.operation = Operation::kDeclareStep,
                                                      .mode = static_cast<shm::Mode>(sets[at].mode),
                                                      .place = sets[at].place.number(),
                                                      .value = value.packed()});
    if (!heard) return heard;
  }
  return {};
}

}  // namespace

// A daemon that was greeted.
class Client::Opening : public client::AnswerSource<Client> {
 public:
  explicit Opening(Session::Greeted greeted) : greeted_(std::move(greeted)) {}
  bool ready(std::chrono::nanoseconds timeout) override {
    return !greeted_ || Session::answered(*greeted_, client::deadline_after(timeout));
  }
  Result<Client> take() override {
    if (!greeted_) return client::taken_already();
    Result<Session::Opened> opened = Session::enter(*std::exchange(greeted_, std::nullopt));
    if (!opened) return std::unexpected(opened.error());
    auto state = std::make_unique<State>();
    state->session = opened->session;
    state->holders = opened->session->holders();
    state->reader = std::move(opened->reader);
    state->socket = opened->session->path();
    return Client(std::move(state));
  }

 private:
  std::optional<Session::Greeted> greeted_;
};

Result<Client> Client::connect(const ConnectOptions& options) {
  return connect_async(options).wait(std::chrono::nanoseconds::max());
}

Pending<Client> Client::connect_async(const ConnectOptions& options) {
  Result<Session::Greeted> greeted = Session::greet(options);
  if (greeted) return Pending<Client>(std::make_unique<Opening>(std::move(*greeted)));
  return Pending<Client>(std::make_unique<client::KnownAnswer<Client>>(std::unexpected(greeted.error())));
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
  if (state_ == nullptr || !state_->holders->shut_off()) return;
  if (state_->session->forked()) {
    static_cast<void>(state_->reader.release());  // a thread of the parent's: neither to be joined nor detached here
    return;
  }
  state_->session->end_waits();
  state_->holders->leave();
  if (state_->holders->count() == 0) {
    state_->reader->join();
  } else {
    state_->reader->detach();  // ends with the last lease, or call
  }
  state_->reader.reset();
}

Client::Use Client::use() const { return Use(state_.get()); }

Result<std::vector<Tensor>> Client::create(std::span<const TensorSpec> specs, std::chrono::nanoseconds timeout) {
  const Use session = use();
  return !session ? client_closed() : session->create(specs, timeout);
}

Result<Tensor> Client::create(const TensorSpec& spec, std::chrono::nanoseconds timeout) {
  Result<std::vector<Tensor>> tensors = create({&spec, 1}, timeout);
  if (!tensors) return std::unexpected(tensors.error());
  return tensors->front();
}

Pending<std::vector<Tensor>> Client::create_async(std::span<const TensorSpec> specs, std::chrono::nanoseconds timeout) {
  const Use session = use();
  return !session ? closed_pending<std::vector<Tensor>>() : session->create_async(specs, timeout);
}

Result<std::vector<Tensor>> Client::find(std::span<const std::string> names, std::chrono::nanoseconds timeout) {
  const Use session = use();
  return !session ? client_closed() : session->find(names, timeout);
}

Result<Lease> Client::acquire(const Tensor& tensor, const LeaseOptions& options) {
  Use session = use();
  // One that is returned whatever happens is made where it is returned: to move one costs two counts of its tensor.
  Result<Lease> lease = session ? session->acquire(tensor, options) : client_closed();
  if (lease) session.hand_over();
  return lease;
}

Result<std::vector<Lease>> Client::acquire(std::span<const Tensor> tensors, const LeaseOptions& options) {
  const Use session = use();
  return !session ? client_closed() : session->acquire(tensors, options);
}

Pending<std::vector<Lease>> Client::acquire_async(std::span<const Tensor> tensors, const LeaseOptions& options) {
  const Use session = use();
  return !session ? closed_pending<std::vector<Lease>>() : session->acquire_async(tensors, options);
}

Result<bool> Client::resident(const Tensor& tensor, Place place) const {
  const Use session = use();
  return !session ? client_closed() : session->resident(tensor, place);
}

Result<void> Client::ask(Operation operation, std::span<const Tensor> tensors, std::uint32_t place,
                         std::chrono::nanoseconds timeout) {
  const Use session = use();
  return !session ? client_closed()
                  : session->ask(tensors, {.operation = operation, .place = place, .timeout = timeout});
}

Pending<void> Client::ask_async(Operation operation, std::span<const Tensor> tensors, std::uint32_t place,
                                std::chrono::nanoseconds timeout) {
  const Use session = use();
  if (!session) return closed_pending<void>();
  return session->ask_async(tensors, {.operation = operation, .place = place, .timeout = timeout});
}

Result<void> Client::destroy(std::span<const Tensor> tensors, std::chrono::nanoseconds timeout) {
  return ask(Operation::kDelete, tensors, 0, timeout);
}
Pending<void> Client::destroy_async(std::span<const Tensor> tensors, std::chrono::nanoseconds timeout) {
  return ask_async(Operation::kDelete, tensors, 0, timeout);
}
Result<void> Client::swap_in(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return ask(Operation::kMove, tensors, place.number(), timeout);
}
Result<void> Client::swap_out(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return ask(Operation::kMove, tensors, place.number(), timeout);
}
Pending<void> Client::swap_in_async(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return ask_async(Operation::kMove, tensors, place.number(), timeout);
}
Pending<void> Client::swap_out_async(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return ask_async(Operation::kMove, tensors, place.number(), timeout);
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
Pending<void> Client::prefetch_async(std::span<const Tensor> tensors, Place place) {
  return ask_async(Operation::kPrefetch, tensors, place.number(), kTimeoutDefault);
}
Pending<void> Client::evict_async(std::span<const Tensor> tensors) {
  return ask_async(Operation::kEvict, tensors, 0, kTimeoutDefault);
}
Pending<void> Client::dont_need_async(std::span<const Tensor> tensors) {
  return ask_async(Operation::kDontNeed, tensors, 0, kTimeoutDefault);
}
Result<void> Client::pin(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return ask(Operation::kPin, tensors, place.number(), timeout);
}
Pending<void> Client::pin_async(std::span<const Tensor> tensors, Place place, std::chrono::nanoseconds timeout) {
  return ask_async(Operation::kPin, tensors, place.number(), timeout);
}
Result<void> Client::unpin(std::span<const Tensor> tensors) {
  return ask(Operation::kUnpin, tensors, 0, kTimeoutDefault);
}

Result<void> Client::mark_step(StepKind kind) {
  const Use session = use();
  return !session ? client_closed()
                  : session->ask({}, {.operation = Operation::kMarkStep, .value = static_cast<std::uint64_t>(kind)});
}

Result<void> Client::declare_step(std::span<const DeclaredSet> sets, StepKind kind) {
  const Use session = use();
  if (!session) return client_closed();
  if (sets.size() > shm::DeclaredValue::kPositionMax)
    return fail(ErrorCode::kInvalidArgument, "a step of more than 16777215 sets: declare a part of it");
  for (;;) {
    const std::uint64_t reconnects = session->reconnects();
    const Result<void> heard = declare_sets(*session, sets, kind);
    // The next daemon has not heard the first sets: they are declared to it again.
    const bool unheard = !heard && heard.error().code == ErrorCode::kFailedPrecondition;
    if (!unheard || session->reconnects() == reconnects) return heard;
  }
}

std::uint32_t Client::session() const {
  const Use session = use();
  return session ? session->id() : 0;
}
const std::string& Client::socket() const {
  static const std::string none;
  return state_ == nullptr ? none : state_->socket;
}
std::vector<PlaceOffer> Client::places() const {
  const Use session = use();
  return session ? session->offers() : std::vector<PlaceOffer>();
}
Result<std::optional<int>> Client::cuda_device(Place place) const {
  const Use session = use();
  return session ? session->cuda_device(place) : client_closed();
}
std::uint64_t Client::reconnects() const {
  const Use session = use();
  return session ? session->reconnects() : 0;
}
std::uint64_t Client::pinned_bytes() const {
  const Use session = use();
  return !session ? 0 : session->pinned_bytes();
}

bool Client::await_passed() const { return client::await_passed(); }

std::uint64_t Client::held() const {
  const Use session = use();
  constexpr std::uint64_t kOwn = 2;  // the client, unless it is being closed, and this call
  return session ? std::max(session->holders()->count(), kOwn) - kOwn : 0;
}

}  // namespace terrace
