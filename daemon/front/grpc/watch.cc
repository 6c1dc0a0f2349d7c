// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/watch.h"

#include <utility>

#include "front/grpc/authenticate.h"
#include "front/grpc/refused.h"

namespace terrace::front {

void Watches::add(WatchCall* call) {
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    calls_.insert(call);
    ended = ended_;
  }
  if (ended) call->end(fail(ErrorCode::kUnavailable, "the daemon stops: watch again when it is back"));
}

void Watches::remove(WatchCall* call) {
  const std::lock_guard lock(mutex_);
  calls_.erase(call);
}

void Watches::end_all() {
  const std::lock_guard lock(mutex_);  // kept, so that no call is done, and gone, before its turn
  ended_ = true;
  for (WatchCall* call : calls_)
    call->end(fail(ErrorCode::kUnavailable, "the daemon stops: watch again when it is back"));
}

grpc::ServerWriteReactor<v1::WatchResponse>* WatchCall::start(Gateway& gateway, const GrpcPeers& peers,
                                                              Watches& watches, grpc::CallbackServerContext& context,
                                                              std::string_view token) {
  const auto session = authenticate(gateway, peers, context, token);
  if (!session) return new Refused<v1::WatchResponse>(session.error());
  auto* call = new WatchCall(gateway, watches);
  call->watcher_ = gateway.watch([call](const engine::Pressure& pressure) { call->event(pressure); });
  call->watching_ = true;
  watches.add(call);
  call->pump();
  return call;
}

void WatchCall::event(const engine::Pressure& pressure) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.insert_or_assign(pressure.tier, pressure);
  }
  pump();
}

void WatchCall::pump() {
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || busy_ || (!first_ && waiting_.empty())) return;
    busy_ = true;
  }
  gateway_.post({.body = engine::GetStatus{}}, [this](engine::Reply reply) {
    if (reply.result) return send(std::get<engine::Status>(*reply.result));
    {
      const std::lock_guard lock(mutex_);
      busy_ = false;
      if (std::exchange(ended_, true)) return Finish(to_grpc(result_ ? reply.result.error() : result_.error()));
    }
    Finish(to_grpc(reply.result.error()));
  });
}

void WatchCall::send(const engine::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return Finish(to_grpc(result_.error()));
    response_.Clear();
    if (!std::exchange(first_, false)) {
      const auto next = waiting_.begin();
      const engine::Pressure pressure = next->second;
      waiting_.erase(next);
      v1::Pressure& out = *response_.mutable_pressure();
      if (index(pressure.tier) < status.tiers.size()) out.set_tier(status.tiers[index(pressure.tier)].name);
      out.set_above_high_mark(pressure.above);
      out.set_used_bytes(pressure.used_bytes);
      out.set_capacity_bytes(pressure.capacity_bytes);
    }
  }
  from_headroom(status, response_);
  StartWrite(&response_);
}

void WatchCall::OnWriteDone(bool ok) {
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    busy_ = false;
    if (!ok && !std::exchange(ended_, true)) result_ = fail(ErrorCode::kCancelled, "the caller does not read any more");
    ended = ended_;
  }
  if (ended) return Finish(to_grpc(result_.error()));
  pump();
}

// While something is on its way, its end finishes the call: it must not outlive it.
void WatchCall::end(const Result<void>& result) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    result_ = result;
    if (busy_) return;
  }
  Finish(to_grpc(result_.error()));
}

void WatchCall::OnCancel() { end(fail(ErrorCode::kCancelled, "the caller gave up")); }

void WatchCall::OnDone() {
  if (watching_) gateway_.unwatch(watcher_);
  watches_.remove(this);
  delete this;
}

}  // namespace terrace::front
