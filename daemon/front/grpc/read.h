// SPDX-License-Identifier: Apache-2.0
// Read: a tensor's bytes as a stream, under one read lease.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "front/grpc/stream.h"
#include "terrace/v1/terrace.pb.h"

namespace terrace::front {

// The call's reactor; it owns itself.
grpc::ServerWriteReactor<v1::ReadResponse>* start_read(const StreamSettings& settings,
                                                       grpc::CallbackServerContext& context,
                                                       const v1::ReadRequest& request);

}  // namespace terrace::front
