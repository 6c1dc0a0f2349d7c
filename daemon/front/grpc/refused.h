// SPDX-License-Identifier: Apache-2.0
// A call that streams answers, and failed before it began.
#pragma once

#include <grpcpp/grpcpp.h>

#include "front/grpc/convert.h"

namespace terrace::front {

// Ends itself.
template <typename Answer>
class Refused final : public grpc::ServerWriteReactor<Answer> {
 public:
  explicit Refused(const Error& error) { this->Finish(to_grpc(error)); }
  void OnDone() override { delete this; }
};

}  // namespace terrace::front
