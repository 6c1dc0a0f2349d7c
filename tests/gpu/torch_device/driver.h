// SPDX-License-Identifier: Apache-2.0
// The entry points of the fake driver that the test device calls itself, linked and not looked up.
#pragma once

#include <cstddef>

#include "cuda/abi.h"

extern "C" {
terrace::cuda::Status cuInit(unsigned flags);
terrace::cuda::Status cuGetErrorName(terrace::cuda::Status status, const char** name);
terrace::cuda::Status cuDeviceGetCount(int* count);
terrace::cuda::Status cuDeviceGet(int* device, int ordinal);
terrace::cuda::Status cuDevicePrimaryCtxRetain(terrace::cuda::Context* context, int device);
terrace::cuda::Status cuCtxPushCurrent_v2(terrace::cuda::Context context);
terrace::cuda::Status cuCtxPopCurrent_v2(terrace::cuda::Context* context);
terrace::cuda::Status cuStreamCreateWithPriority(terrace::cuda::Stream* stream, unsigned flags, int priority);
terrace::cuda::Status cuStreamBeginCapture_v2(terrace::cuda::Stream stream, terrace::cuda::CaptureMode mode);
terrace::cuda::Status cuStreamEndCapture(terrace::cuda::Stream stream, void** graph);
terrace::cuda::Status cuThreadExchangeStreamCaptureMode(terrace::cuda::CaptureMode* mode);
terrace::cuda::Status cuMemAlloc_v2(terrace::cuda::Pointer* pointer, std::size_t bytes);
terrace::cuda::Status cuMemFree_v2(terrace::cuda::Pointer pointer);
terrace::cuda::Status cuMemGetInfo_v2(std::size_t* free, std::size_t* total);
terrace::cuda::Status cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned flags);
terrace::cuda::Status cuMemHostUnregister(void* address);
}
