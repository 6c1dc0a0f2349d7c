// SPDX-License-Identifier: Apache-2.0
// What every gRPC call needs on its way to the gateway and back. gRPC's threads post and leave; answers come on the
// reactor thread and only copy and finish.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "engine/values/request.h"
#include "front/gateway/gateway.h"

namespace terrace::front {

// The call's deadline on the gateway's clock; `longest` from now where it has none, or a later one.
Time call_deadline(const grpc::CallbackServerContext& context, const Gateway& gateway, Duration longest);

// Posts what must reach the engine whatever its queue says (a lease to give back): tries again, a millisecond later,
// for as long as the queue is full. `done` is called once, on any thread.
void post_surely(Gateway& gateway, SessionId session, engine::Body body, std::function<void()> done);

// A request that can be cancelled from another thread while it is being posted. Cancelling what is answered is
// harmless.
class Posted {
 public:
  void post(Gateway& gateway, engine::Request request, Gateway::Answer answer);
  void cancel(Gateway& gateway);
  bool cancelled() const { return cancelled_.load(); }

 private:
  std::atomic<std::uint64_t> id_{0};
  std::atomic<bool> cancelled_{false};
};

// One request, one reply. It owns itself until gRPC and the gateway are both done with it.
class UnaryCall final : public grpc::ServerUnaryReactor, public std::enable_shared_from_this<UnaryCall> {
 public:
  // Writes the call's response from the engine's reply.
  using Fill = std::move_only_function<void(engine::ReplyBody&)>;

  // A call whose status is known.
  static grpc::ServerUnaryReactor* finished(const Result<void>& result);
  // A call that is one request. `undo`, if there is one, is posted when the client gave up on what was granted.
  static grpc::ServerUnaryReactor* start(Gateway& gateway, engine::Request request, Fill fill,
                                         std::function<engine::Body()> undo = nullptr);
  // A call that finishes itself, with finish() on the returned object, once.
  static std::shared_ptr<UnaryCall> open(Gateway& gateway);

  void finish(const Result<void>& result);
  bool cancelled() const { return posted_.cancelled(); }

  void OnCancel() override { posted_.cancel(gateway_); }
  void OnDone() override { self_.reset(); }

 private:
  explicit UnaryCall(Gateway& gateway) : gateway_(gateway) {}
  void answered(SessionId session, engine::Reply reply);

  Gateway& gateway_;
  Posted posted_;
  Fill fill_;
  std::function<engine::Body()> undo_;
  std::shared_ptr<UnaryCall> self_;  // until OnDone
};

}  // namespace terrace::front
