// SPDX-License-Identifier: Apache-2.0
// Leases that end when a GPU has passed a point of one of its streams, on a thread of the library's own.
#pragma once

#include <memory>

#include "cuda/driver.h"
#include "terrace/lease.h"

namespace terrace::client {

// Records the point now, in the calling thread; the lease ends once the GPU is past it. An error: the driver's, and the
// lease is not ended, nor will it be. Null is the default stream of the calling thread's context.
Result<void> release_past(cuda::Stream stream, LeaseToken token);

// For deleters: calls no CUDA and waits for nothing. The point is recorded a moment later, on the library's thread, in
// `context`; the stream must still be there then. release_past() was called before, or start_stream_releases().
void release_past_soon(cuda::Context context, cuda::Stream stream, LeaseToken token) noexcept;

// Starts the thread, if it does not run. Once a process has mapped a GPU's memory.
void start_stream_releases(const cuda::Api& api);

}  // namespace terrace::client
