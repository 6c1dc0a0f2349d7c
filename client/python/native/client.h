// SPDX-License-Identifier: Apache-2.0
// The Python objects `_terrace.Client` and `terrace.Tensor`: the C++ client's calls with the GIL released.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

#include "lease.h"
#include "terrace/client.h"

namespace terrace::python {

// One session, shared by the Client object and its Tensor objects; it ends with the last of them, or with close().
struct Connection {
  explicit Connection(Client&& opened) : client(std::move(opened)) {}
  Client client;
  std::shared_ptr<LeasedBytes> leased = std::make_shared<LeasedBytes>();
};

// A tensor that knows its session.
struct BoundTensor {
  std::shared_ptr<Connection> connection;
  Tensor tensor;
};

void bind_client(nanobind::module_& module);

}  // namespace terrace::python
