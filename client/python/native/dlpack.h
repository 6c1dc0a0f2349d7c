// SPDX-License-Identifier: Apache-2.0
// Exports of leased memory as DLPack capsules that own the lease: https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>

#include "lease.h"

namespace terrace::python {

// A capsule for the lease's memory: "dltensor_versioned" (which says whether it is read-only), or "dltensor" for
// consumers from before DLPack 1.0. The consumer's deleter releases this export's part of the lease: from any thread,
// without the GIL. The caller holds the GIL.
nanobind::object dlpack_capsule(std::shared_ptr<const Hold> hold, bool versioned);

// The pair that __dlpack_device__ returns: a GPU by this process's number for it, or host memory, for emulated devices
// too.
nanobind::object dlpack_device(const Hold& hold);

// A capsule for other memory, of the CPU or of the GPU with this number, as bytes; `owner` lives until the consumer's
// deleter. The caller holds the GIL.
nanobind::object dlpack_bytes(const std::byte* address, std::size_t bytes, std::shared_ptr<const void> owner,
                              std::optional<int> cuda_device);

}  // namespace terrace::python
