// SPDX-License-Identifier: Apache-2.0
#include "front/entrance.h"

#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace terrace::front {
namespace {

engine::Reply refusal_of(RequestId id, ErrorCode code, std::string message) {
  return {id, std::unexpected(Error{code, std::move(message), 0})};
}

constexpr const char* kMailboxFull = "the daemon has as many requests waiting as it takes; try again in a moment";

}  // namespace

RequestId Entrance::post(engine::Request request, Answer answer) {
  const RequestId id = request.id = around_.loop.next_request();
  // The job owns the answer; if the mailbox refuses it, the answer must still be there to be called.
  auto shared = std::make_shared<Answer>(std::move(answer));
  const bool posted = around_.reactor.post([this, request = std::move(request), shared]() mutable {
    if (std::holds_alternative<engine::GetStatus>(request.body)) around_.sessions.drain_all_logs();
    around_.loop.submit(std::move(request), std::move(*shared));
    around_.loop.pump();
  });
  if (!posted) (*shared)(refusal_of(id, ErrorCode::kResourceExhausted, kMailboxFull));
  return id;
}

void Entrance::cancel(RequestId request) {
  // A full mailbox loses the wish, not the reply: the request's deadline stands.
  static_cast<void>(around_.reactor.post([this, request] {
    around_.loop.engine().cancel(around_.loop.now(), request);
    around_.loop.pump();
  }));
}

void Entrance::open(const Peer& peer, engine::OpenSession request, Time deadline, OpenAnswer answer) {
  auto shared = std::make_shared<OpenAnswer>(std::move(answer));
  const bool posted = around_.reactor.post([this, peer, request = std::move(request), deadline, shared]() mutable {
    around_.arrivals.open(peer, std::move(request), deadline, std::move(*shared));
  });
  if (!posted) (*shared)(fail(ErrorCode::kResourceExhausted, kMailboxFull));
}

Result<SessionId> Entrance::authenticate(const Token& token, const Peer& peer) {
  return around_.tokens.authenticate(token, peer.tenant, now());
}

bool Entrance::run(std::move_only_function<void()> job) {
  return around_.reactor.post([this, job = std::move(job)]() mutable {
    job();
    around_.loop.pump();
  });
}

std::byte* Entrance::address(SessionId session, const engine::Placement& placement) {
  const tier::MappedTier* tier = around_.node.at_place(placement.place);
  const Session* owner = around_.sessions.find(session);
  if (tier == nullptr || tier->cuda() != nullptr || owner == nullptr || owner->state != Session::State::kOpen)
    return nullptr;
  return tier->address(owner->space, placement.offset);
}

}  // namespace terrace::front
