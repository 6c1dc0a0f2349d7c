// SPDX-License-Identifier: Apache-2.0
// Leases that end when a GPU has passed a point of one of its streams, on a thread of the library's own.
#pragma once

#include <memory>
#include <span>

#include "cuda/driver.h"
#include "terrace/lease.h"

namespace terrace::client {

// Streams as users have them. The default ones are of `context`, the lease's GPU's; null: those of the calling thread's
// context.
using Streams = std::span<void* const>;

// Records what lies in the streams now, in the calling thread; the lease ends once the GPU is past all of it. An error:
// the driver's, and the lease is not ended, nor will it be.
Result<void> release_past(cuda::Context context, Streams streams, LeaseToken token);

// The same of what holds a part of a lease: it is dropped once the GPU is past all of it, on the library's thread. An
// error: it was not kept.
Result<void> keep_past(cuda::Context context, Streams streams, std::shared_ptr<const void> part);

// For deleters: calls no CUDA and waits for nothing. What lies in the streams is recorded a moment later, on the
// library's thread; the streams must still be there then. release_past() was called before, or start_stream_releases().
void release_past_soon(cuda::Context context, Streams streams, LeaseToken token) noexcept;

// Waits until what was to end behind streams before this call has ended, for a second at most. False: not all has.
bool await_passed();

// Starts the thread, if it does not run. Once a process has mapped a GPU's memory.
void start_stream_releases(const cuda::Api& api);

}  // namespace terrace::client
