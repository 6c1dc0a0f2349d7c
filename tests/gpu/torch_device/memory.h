// SPDX-License-Identifier: Apache-2.0
// PyTorch's memory of the test device, and its pinned memory. A device's is the stream's that it was asked for on:
// freed, it is given again at once to who asks for as much on that stream, behind what record_stream() named. What is
// given is poisoned with one bits first, in the stream. Pinned memory that is freed is poisoned when the marks of its
// copies have passed.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

namespace terrace::torch_device {

c10::DeviceAllocator& device_memory();
c10::Allocator& pinned_memory();

// Gives what is free back to the driver.
void release_free();
bool is_pinned(const void* address);
// A stream copies from or to pinned memory: kept until it has passed what lies in it now.
void note_copy(const void* pinned, const c10::Stream& stream);

}  // namespace terrace::torch_device
