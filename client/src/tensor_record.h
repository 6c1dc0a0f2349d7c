// SPDX-License-Identifier: Apache-2.0
// What stands behind a Tensor, and a TensorSpec made whole for the wire.
#pragma once

#include <cstdint>

#include "shm/layout.h"
#include "terrace/error.h"
#include "terrace/tensor.h"

namespace terrace::client {

struct TensorRecord {
  TensorSpec spec;           // strides and bytes filled in
  std::uint64_t handle = 0;  // packed: incarnation << 32 | slot
  std::uint64_t serial = 0;  // of the session
};

// The spec with shape, strides and bytes filled in. kInvalidArgument for what no tensor can be.
Result<TensorSpec> complete(const TensorSpec& spec);

// For the wire; the spec is complete.
shm::CreateRecord to_wire(const TensorSpec& spec);
// As the daemon described it; to be completed.
TensorSpec from_wire(const shm::CreateRecord& record);

}  // namespace terrace::client
