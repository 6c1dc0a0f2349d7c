// SPDX-License-Identifier: Apache-2.0
// Watch: pressure events as a stream that has no end of its own.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

#include "front/gateway/gateway.h"
#include "front/grpc/peers.h"
#include "terrace/v1/terrace.pb.h"

namespace terrace::front {

class WatchCall;

// The open Watch calls, so that they can be ended. Thread-safe.
class Watches {
 public:
  void add(WatchCall* call);
  void remove(WatchCall* call);
  // Ends every call, and each that comes later, with UNAVAILABLE.
  void end_all();

 private:
  std::mutex mutex_;
  std::set<WatchCall*> calls_;
  bool ended_ = false;
};

// One stream. At most one message is on its way and at most one event per tier waits; newer ones take an older one's
// place. It owns itself.
class WatchCall final : public grpc::ServerWriteReactor<v1::WatchResponse> {
 public:
  static grpc::ServerWriteReactor<v1::WatchResponse>* start(Gateway& gateway, const GrpcPeers& peers, Watches& watches,
                                                            grpc::CallbackServerContext& context,
                                                            std::string_view token);

  // Finishes the call, once; later ends are ignored.
  void end(const Result<void>& result);

  void OnCancel() override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  WatchCall(Gateway& gateway, Watches& watches) : gateway_(gateway), watches_(watches) {}
  void event(const engine::Pressure& pressure);  // reactor thread
  void pump();
  void send(const engine::Status& status);  // reactor thread

  Gateway& gateway_;
  Watches& watches_;
  std::uint64_t watcher_ = 0;
  bool watching_ = false;
  v1::WatchResponse response_;

  std::mutex mutex_;
  bool busy_ = false;  // a status is asked for, or a message is on its way
  bool first_ = true;  // the first message has no event
  bool ended_ = false;
  Result<void> result_;
  std::map<TierId, engine::Pressure> waiting_;
};

}  // namespace terrace::front
