// SPDX-License-Identifier: Apache-2.0
// Write: a stream of bytes into a tensor, under one write or overwrite lease.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "front/grpc/stream.h"
#include "terrace/v1/terrace.pb.h"

namespace terrace::front {

// The call's reactor; it owns itself. `settings` outlives the call.
grpc::ServerReadReactor<v1::WriteRequest>* start_write(const StreamSettings& settings,
                                                       grpc::CallbackServerContext& context,
                                                       v1::WriteResponse& response);

}  // namespace terrace::front
