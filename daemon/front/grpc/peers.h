// SPDX-License-Identifier: Apache-2.0
// Who is behind each connection that was handed to gRPC, found by the name that gRPC gives such a peer.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/fd.h"
#include "front/gateway/gateway.h"
#include "terrace/error.h"

namespace terrace::front {

// gRPC calls a peer "fd:N" (1.51 does; a test holds it to that), and N is free for the next connection when this one
// is closed, while a call of this one may still be on its way to its handler. So each connection is moved to a number
// that has not been used for as long as possible: the numbers go round in the upper half of what the process may have.
// Thread-safe.
class GrpcPeers {
 public:
  GrpcPeers();

  // Moves the connection to a number of its own and remembers its peer.
  Result<Fd> add(Fd connection, const Peer& peer);
  // The peer behind `grpc_peer` ("fd:N"); none if it is none of ours.
  std::optional<Peer> find(std::string_view grpc_peer) const;

 private:
  const int first_;
  const int end_;
  mutable std::mutex mutex_;
  int next_;
  std::map<int, Peer> peers_;
};

}  // namespace terrace::front
