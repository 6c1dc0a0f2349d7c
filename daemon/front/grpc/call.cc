// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/call.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <utility>

#include "front/grpc/convert.h"

namespace terrace::front {
namespace {

// An immediately finished call needs no gateway.
class Finished final : public grpc::ServerUnaryReactor {
 public:
  explicit Finished(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

Time call_deadline(const grpc::CallbackServerContext& context, const Gateway& gateway, Duration longest) {
  const auto now = std::chrono::system_clock::now();
  const auto left = std::chrono::duration_cast<Duration>(context.deadline() - now);
  return gateway.now() + std::clamp(left, Duration::zero(), longest);
}

void post_surely(Gateway& gateway, SessionId session, engine::Body body, std::function<void()> done) {
  engine::Body copy = body;
  gateway.post({.session = session, .body = std::move(copy)},
               [&gateway, session, body = std::move(body), done = std::move(done)](engine::Reply reply) mutable {
                 if (reply.result || reply.result.error().code != ErrorCode::kResourceExhausted) return done();
                 auto* alarm = new grpc::Alarm;  // its own callback deletes it: gRPC keeps what runs alive
                 alarm->Set(std::chrono::system_clock::now() + std::chrono::milliseconds(1),
                            [&gateway, session, body = std::move(body), done = std::move(done), alarm](bool) mutable {
                              delete alarm;
                              post_surely(gateway, session, std::move(body), std::move(done));
                            });
               });
}

void Posted::post(Gateway& gateway, engine::Request request, Gateway::Answer answer) {
  const RequestId id = gateway.post(std::move(request), std::move(answer));
  id_ = static_cast<std::uint64_t>(id);
  if (cancelled_) gateway.cancel(id);
}

void Posted::cancel(Gateway& gateway) {
  cancelled_ = true;
  if (const std::uint64_t id = id_; id != 0) gateway.cancel(RequestId{id});
}

grpc::ServerUnaryReactor* UnaryCall::finished(const Result<void>& result) {
  return new Finished(result ? grpc::Status::OK : to_grpc(result.error()));
}

std::shared_ptr<UnaryCall> UnaryCall::open(Gateway& gateway) {
  std::shared_ptr<UnaryCall> call(new UnaryCall(gateway));
  call->self_ = call;
  return call;
}

grpc::ServerUnaryReactor* UnaryCall::start(Gateway& gateway, engine::Request request, Fill fill,
                                           std::function<engine::Body()> undo) {
  auto call = open(gateway);
  call->fill_ = std::move(fill);
  call->undo_ = std::move(undo);
  const SessionId session = request.session;
  call->posted_.post(gateway, std::move(request),
                     [call, session](engine::Reply reply) { call->answered(session, std::move(reply)); });
  return call.get();
}

void UnaryCall::answered(SessionId session, engine::Reply reply) {
  if (!reply.result) return finish(std::unexpected(reply.result.error()));
  if (undo_ && cancelled()) {
    return post_surely(gateway_, session, undo_(), [call = shared_from_this()] {
      call->finish(fail(ErrorCode::kCancelled, "the caller gave up; what was granted is given back"));
    });
  }
  fill_(*reply.result);
  finish({});
}

void UnaryCall::finish(const Result<void>& result) { Finish(result ? grpc::Status::OK : to_grpc(result.error())); }

}  // namespace terrace::front
