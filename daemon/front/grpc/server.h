// SPDX-License-Identifier: Apache-2.0
// The gRPC front: terrace.v1 over connections that somebody else accepts. It listens on nothing itself.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "front/gateway/gateway.h"
#include "terrace/error.h"

namespace terrace::front {

struct GrpcOptions {
  bool admin = false;                     // the Admin service instead of Terrace; both come with the health service
  std::vector<std::string> tenant_names;  // by Tenant::socket: what status calls them
  std::uint32_t stream_place =
      0;  // where Read and Write lease: host, or the first device where there is no memory tier
  std::chrono::milliseconds request_timeout{60'000};  // of a call without a deadline, and the longest one
  std::chrono::milliseconds idle_timeout{600'000};    // a connection without a call for so long is closed
  std::size_t memory_bytes_max = 256u << 20;          // what gRPC may buffer, over all connections
  int threads_max = 16;                               // of gRPC's own
  // Admin only: called on the reactor thread when the engine drains, because an administrator asked.
  std::function<void()> on_drain;
  // Admin only: asks the program that would come next for its version, or why it cannot go on. May take seconds.
  std::function<Result<std::string>()> ask_successor;
  // Admin only: has the daemon stop, and its supervisor start the next one.
  std::function<void()> stop;
};

// Translates calls to Requests and Replies to answers; holds no session, tensor or lease of its own beyond the calls
// that are open. All methods are thread-safe.
class GrpcServer {
 public:
  // `gateway` outlives the server. Internal: gRPC did not start.
  static Result<std::unique_ptr<GrpcServer>> create(Gateway& gateway, GrpcOptions options);
  virtual ~GrpcServer() = default;

  // Serves a connected, non-blocking stream socket whose other end is `peer`, through an Http2Gate. Does not block.
  // Unavailable: after shutdown().
  virtual Result<void> adopt(Fd connection, const Peer& peer) = 0;
  // Adopted connections that are still open: for the cap on them.
  virtual std::size_t connections() const = 0;
  // What the health service says: SERVING or NOT_SERVING. It begins as SERVING.
  virtual void set_serving(bool serving) = 0;
  // Waits for open calls, at most this long, then cancels them; Watch calls are ended at once. The gateway must go on
  // answering meanwhile, so this is not for the reactor thread. Afterwards no call is open and the gateway is not used
  // again. Once.
  virtual void shutdown(std::chrono::milliseconds patience) = 0;
};

}  // namespace terrace::front
