// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's binary interface that Terrace uses, written from its documentation so that everything
// builds without the toolkit: https://docs.nvidia.com/cuda/cuda-driver-api/. Where cuda.h is there, a test holds every
// line of this against it (tests/gpu/cuda_abi_test.cc).
#pragma once

#include <array>
#include <cstddef>

namespace terrace::cuda {

using Status = int;                          // CUresult
using Device = int;                          // CUdevice
using Pointer = unsigned long long;          // CUdeviceptr  NOLINT(google-runtime-int)
using Allocation = unsigned long long;       // CUmemGenericAllocationHandle  NOLINT(google-runtime-int)
using CaptureMode = int;                     // CUstreamCaptureMode
using CaptureStatus = int;                   // CUstreamCaptureStatus
using Flags64 = unsigned long long;          // NOLINT(google-runtime-int)
using Context = struct OpaqueContext*;       // CUcontext
using Stream = struct OpaqueStream*;         // CUstream; null: the context's default stream
using Event = struct OpaqueEvent*;           // CUevent
using Uuid = std::array<unsigned char, 16>;  // CUuuid

// What calls return. Those that Terrace tells apart; cuGetErrorName has the others' names.
inline constexpr Status kSuccess = 0;
inline constexpr Status kInvalidValue = 1;
inline constexpr Status kOutOfMemory = 2;
inline constexpr Status kNotInitialized = 3;
inline constexpr Status kDeinitialized = 4;
inline constexpr Status kStubLibrary = 34;
inline constexpr Status kRequiresNewerDriver = 36;
inline constexpr Status kDeviceUnavailable = 46;
inline constexpr Status kNoDevice = 100;
inline constexpr Status kInvalidDevice = 101;
inline constexpr Status kInvalidContext = 201;
inline constexpr Status kEccUncorrectable = 214;
inline constexpr Status kNvlinkUncorrectable = 220;
inline constexpr Status kContained = 226;
inline constexpr Status kOperatingSystem = 304;
inline constexpr Status kInvalidHandle = 400;
inline constexpr Status kNotReady = 600;
inline constexpr Status kIllegalAddress = 700;
inline constexpr Status kLaunchTimeout = 702;
inline constexpr Status kContextIsDestroyed = 709;
inline constexpr Status kAssert = 710;
inline constexpr Status kHostMemoryAlreadyRegistered = 712;
inline constexpr Status kHostMemoryNotRegistered = 713;
inline constexpr Status kHardwareStackError = 714;
inline constexpr Status kLaunchFailed = 719;
inline constexpr Status kNotPermitted = 800;
inline constexpr Status kNotSupported = 801;
inline constexpr Status kSystemNotReady = 802;
inline constexpr Status kSystemDriverMismatch = 803;
inline constexpr Status kCompatNotSupportedOnDevice = 804;
inline constexpr Status kStreamCaptureUnsupported = 900;
inline constexpr Status kExternalDevice = 911;
inline constexpr Status kUnknown = 999;

// CUdevice_attribute.
inline constexpr int kAttributeVirtualMemory = 102;
inline constexpr int kAttributePosixDescriptors = 103;
inline constexpr int kAttributeReadOnlyHostRegister = 113;

inline constexpr int kAllocationPinned = 1;       // CUmemAllocationType
inline constexpr int kHandlePosixDescriptor = 1;  // CUmemAllocationHandleType
inline constexpr int kLocationDevice = 1;         // CUmemLocationType
inline constexpr int kAccessRead = 1;             // CUmemAccess_flags
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;  // CUmemAllocationGranularity_flags
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterReadOnly = 8;
inline constexpr unsigned kContextBlockingSync = 4;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;

inline constexpr CaptureMode kCaptureGlobal = 0;
inline constexpr CaptureMode kCaptureRelaxed = 2;
inline constexpr CaptureStatus kNotCapturing = 0;

// CUmemLocation.
struct Location {
  int type = kLocationDevice;
  int id = 0;
};

// CUmemAllocationProp: memory of a device that can be exported as a descriptor.
struct AllocationProperties {
  int type = kAllocationPinned;
  int handle_types = kHandlePosixDescriptor;
  Location location;
  void* win32 = nullptr;
  unsigned char compression = 0;
  unsigned char rdma = 0;
  unsigned short usage = 0;  // NOLINT(google-runtime-int)
  std::array<unsigned char, 4> reserved{};
};

// CUmemAccessDesc.
struct AccessDescription {
  Location location;
  int flags = kAccessReadWrite;
};

static_assert(sizeof(AllocationProperties) == 32 && sizeof(AccessDescription) == 12 && sizeof(Uuid) == 16);

}  // namespace terrace::cuda
