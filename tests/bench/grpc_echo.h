// SPDX-License-Identifier: Apache-2.0
// A unary gRPC echo over a Unix socket, between two processes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/leftovers.h"
#include "terrace/error.h"

namespace terrace::bench {

class GrpcEcho {
 public:
  // Starts the server, in a process of its own, and connects.
  static Result<std::unique_ptr<GrpcEcho>> start();
  ~GrpcEcho();
  GrpcEcho(const GrpcEcho&) = delete;
  GrpcEcho& operator=(const GrpcEcho&) = delete;

  // Nanoseconds of each of so many calls, one after another. kDataLoss where another word comes back.
  Result<std::vector<double>> call(std::size_t count);

 private:
  struct State;
  GrpcEcho();
  Folder folder_;
  Child server_;
  std::unique_ptr<State> state_;
};

}  // namespace terrace::bench
