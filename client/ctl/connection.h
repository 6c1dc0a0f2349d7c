// SPDX-License-Identifier: Apache-2.0
// terracectl's way to a daemon: which socket, and one call at a time over it.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <memory>
#include <string>

#include "terrace/error.h"
#include "terrace/v1/admin.grpc.pb.h"

namespace terrace::ctl {

// The admin socket: `given` if not empty, else TERRACE_ADMIN_SOCKET, else the first that exists of
// $XDG_RUNTIME_DIR/terrace/admin.sock and /run/terrace/admin.sock. NotFound says where it looked and how to start a
// daemon.
Result<std::string> find_socket(const std::string& given);

class Connection {
 public:
  // Does not connect yet: the first call does.
  explicit Connection(std::string socket);

  const std::string& socket() const { return socket_; }

  // Makes one call with a deadline of ten seconds. Errors are as the daemon said them; Unavailable names the socket
  // where no daemon answers.
  template <typename Response, typename Request>
  Result<Response> call(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                        const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    Response response;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    if (!status.ok()) return std::unexpected(explain(status));
    return response;
  }

 private:
  Error explain(const grpc::Status& status) const;

  std::string socket_;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

}  // namespace terrace::ctl
