// SPDX-License-Identifier: Apache-2.0
// A GPU's address space over a little memory of all one bits.
#pragma once

#include <cstddef>
#include <memory>

#include "terrace/error.h"

namespace terrace::python {

// `pieces` times `piece_bytes` (whole units of 2 MiB) of a GPU's address space, each of which shows the same memory of
// one piece. Kernels read all one bits there, and cannot write where the driver has memory that is only read. It is
// unmapped with the last reference. Errors: the driver's, kResourceExhausted where the GPU has no room for a piece.
Result<std::shared_ptr<const std::byte>> repeat_on_gpu(int cuda_device, std::size_t piece_bytes, std::size_t pieces);

}  // namespace terrace::python
