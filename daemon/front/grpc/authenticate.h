// SPDX-License-Identifier: Apache-2.0
// From a call's context and token to its session.
#pragma once

#include <grpcpp/server_context.h>

#include <string_view>

#include "front/gateway/gateway.h"
#include "front/grpc/convert.h"
#include "front/grpc/peers.h"

namespace terrace::front {

// Who is behind the call's connection.
inline Result<Peer> peer_of(const GrpcPeers& peers, const grpc::CallbackServerContext& context) {
  if (auto peer = peers.find(context.peer())) return *peer;
  return fail(ErrorCode::kInternal, "the connection behind " + context.peer() + " is not known: connect again");
}

// The session of the token, if the call's peer may act for it.
inline Result<SessionId> authenticate(Gateway& gateway, const GrpcPeers& peers,
                                      const grpc::CallbackServerContext& context, std::string_view bytes) {
  const auto token = to_token(bytes);
  if (!token) return std::unexpected(token.error());
  const auto peer = peer_of(peers, context);
  if (!peer) return std::unexpected(peer.error());
  return gateway.authenticate(*token, *peer);
}

}  // namespace terrace::front
