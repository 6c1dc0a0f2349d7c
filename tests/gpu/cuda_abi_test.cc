// SPDX-License-Identifier: Apache-2.0
// Shows that cuda/abi.h and cuda/driver.h declare what the toolkit's cuda.h declares: sizes, offsets, numbers, and of
// each entry point its versioned name and the shape of its parameters.
#include <cuda.h>

#include <cstddef>
#include <string>
#include <type_traits>

#include "gpu/on_fake.h"

namespace terrace::cuda {
namespace {

static_assert(sizeof(Status) == sizeof(CUresult) && sizeof(Device) == sizeof(CUdevice));
static_assert(sizeof(Pointer) == sizeof(CUdeviceptr) && sizeof(Allocation) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(Context) == sizeof(CUcontext) && sizeof(Stream) == sizeof(CUstream));
static_assert(sizeof(Event) == sizeof(CUevent) && sizeof(Uuid) == sizeof(CUuuid));

static_assert(sizeof(Location) == sizeof(CUmemLocation) && offsetof(Location, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDescription, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(alignof(AllocationProperties) == alignof(CUmemAllocationProp));
static_assert(offsetof(AllocationProperties, handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProperties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProperties, win32) == offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(AllocationProperties, compression) == offsetof(CUmemAllocationProp, allocFlags.compressionType));
static_assert(offsetof(AllocationProperties, rdma) == offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
static_assert(offsetof(AllocationProperties, usage) == offsetof(CUmemAllocationProp, allocFlags.usage));

static_assert(kSuccess == CUDA_SUCCESS && kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && kNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(kDeinitialized == CUDA_ERROR_DEINITIALIZED && kStubLibrary == CUDA_ERROR_STUB_LIBRARY);
static_assert(kRequiresNewerDriver == CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
static_assert(kDeviceUnavailable == CUDA_ERROR_DEVICE_UNAVAILABLE && kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(kInvalidDevice == CUDA_ERROR_INVALID_DEVICE && kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(kEccUncorrectable == CUDA_ERROR_ECC_UNCORRECTABLE);
static_assert(kNvlinkUncorrectable == CUDA_ERROR_NVLINK_UNCORRECTABLE &&
              kOperatingSystem == CUDA_ERROR_OPERATING_SYSTEM);
static_assert(kInvalidHandle == CUDA_ERROR_INVALID_HANDLE && kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS && kContextIsDestroyed == CUDA_ERROR_CONTEXT_IS_DESTROYED);
static_assert(kHostMemoryAlreadyRegistered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(kHostMemoryNotRegistered == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
static_assert(kHardwareStackError == CUDA_ERROR_HARDWARE_STACK_ERROR && kLaunchFailed == CUDA_ERROR_LAUNCH_FAILED);
static_assert(kNotPermitted == CUDA_ERROR_NOT_PERMITTED && kNotSupported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(kSystemNotReady == CUDA_ERROR_SYSTEM_NOT_READY);
static_assert(kSystemDriverMismatch == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
static_assert(kCompatNotSupportedOnDevice == CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
static_assert(kLaunchTimeout == CUDA_ERROR_LAUNCH_TIMEOUT && kAssert == CUDA_ERROR_ASSERT);
static_assert(kStreamCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(kExternalDevice == CUDA_ERROR_EXTERNAL_DEVICE && kUnknown == CUDA_ERROR_UNKNOWN);
#if CUDA_VERSION >= 12080
static_assert(kContained == CUDA_ERROR_CONTAINED);
#endif

static_assert(kAttributeVirtualMemory == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
static_assert(kAttributePosixDescriptors == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
static_assert(kAttributeReadOnlyHostRegister == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
static_assert(kAllocationPinned == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(kHandlePosixDescriptor == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(kLocationDevice == CU_MEM_LOCATION_TYPE_DEVICE);
static_assert(kAccessRead == CU_MEM_ACCESS_FLAGS_PROT_READ);
static_assert(kAccessReadWrite == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(kGranularityMinimum == CU_MEM_ALLOC_GRANULARITY_MINIMUM);
static_assert(kHostRegisterPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kHostRegisterReadOnly == CU_MEMHOSTREGISTER_READ_ONLY);
static_assert(kContextBlockingSync == CU_CTX_SCHED_BLOCKING_SYNC && kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kEventBlockingSync == CU_EVENT_BLOCKING_SYNC && kEventDisableTiming == CU_EVENT_DISABLE_TIMING);

static_assert(sizeof(CaptureMode) == sizeof(CUstreamCaptureMode));
static_assert(sizeof(CaptureStatus) == sizeof(CUstreamCaptureStatus));
static_assert(kCaptureGlobal == CU_STREAM_CAPTURE_MODE_GLOBAL && kCaptureRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(kNotCapturing == CU_STREAM_CAPTURE_STATUS_NONE);

template <typename Ours, typename Theirs>
constexpr bool kSameShape = sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;

template <typename... Ours, typename... Theirs>
constexpr bool same(const Entry<Ours...>*, CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
    return false;
  } else {
    return (kSameShape<Ours, Theirs> && ...);
  }
}

class Abi : public fake_cuda::OnFake {};

// The second name is expanded: the toolkit's macros put the version behind it (but of cuDeviceGetUuid before CUDA 13).
#define TERRACE_TEXT_OF(name) #name
#define TERRACE_TEXT(name) TERRACE_TEXT_OF(name)
#define TERRACE_SAME(entry, function)                                                                  \
  static_assert(same(static_cast<decltype(&std::declval<const Api&>().entry)>(nullptr), &(function))); \
  ++compared;                                                                                          \
  EXPECT_STREQ(api().entry.name(), TERRACE_TEXT(function))

TEST_F(Abi, EntryPointsAreTheToolkits) {
  std::size_t compared = 0;
  TERRACE_SAME(init, cuInit);
  TERRACE_SAME(error_name, cuGetErrorName);
  TERRACE_SAME(driver_version, cuDriverGetVersion);
  TERRACE_SAME(device_count, cuDeviceGetCount);
  TERRACE_SAME(device, cuDeviceGet);
  TERRACE_SAME(device_name, cuDeviceGetName);
  TERRACE_SAME(device_uuid, cuDeviceGetUuid_v2);
  TERRACE_SAME(device_pci_bus_id, cuDeviceGetPCIBusId);
  TERRACE_SAME(device_attribute, cuDeviceGetAttribute);
  TERRACE_SAME(primary_retain, cuDevicePrimaryCtxRetain);
  TERRACE_SAME(primary_release, cuDevicePrimaryCtxRelease);
  TERRACE_SAME(primary_set_flags, cuDevicePrimaryCtxSetFlags);
  TERRACE_SAME(primary_state, cuDevicePrimaryCtxGetState);
  TERRACE_SAME(context_push, cuCtxPushCurrent);
  TERRACE_SAME(context_pop, cuCtxPopCurrent);
  TERRACE_SAME(stream_priorities, cuCtxGetStreamPriorityRange);
  TERRACE_SAME(memory_info, cuMemGetInfo);
  TERRACE_SAME(memory_allocate, cuMemAlloc);
  TERRACE_SAME(memory_free, cuMemFree);
  TERRACE_SAME(create, cuMemCreate);
  TERRACE_SAME(release, cuMemRelease);
  TERRACE_SAME(granularity, cuMemGetAllocationGranularity);
  TERRACE_SAME(export_handle, cuMemExportToShareableHandle);
  TERRACE_SAME(import_handle, cuMemImportFromShareableHandle);
  TERRACE_SAME(reserve, cuMemAddressReserve);
  TERRACE_SAME(unreserve, cuMemAddressFree);
  TERRACE_SAME(map, cuMemMap);
  TERRACE_SAME(unmap, cuMemUnmap);
  TERRACE_SAME(set_access, cuMemSetAccess);
  TERRACE_SAME(host_register, cuMemHostRegister);
  TERRACE_SAME(host_unregister, cuMemHostUnregister);
  TERRACE_SAME(stream_create, cuStreamCreateWithPriority);
  TERRACE_SAME(stream_destroy, cuStreamDestroy);
  TERRACE_SAME(stream_synchronize, cuStreamSynchronize);
  TERRACE_SAME(stream_context, cuStreamGetCtx);
  TERRACE_SAME(stream_is_capturing, cuStreamIsCapturing);
  TERRACE_SAME(exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
  TERRACE_SAME(copy_up, cuMemcpyHtoDAsync);
  TERRACE_SAME(copy_down, cuMemcpyDtoHAsync);
  TERRACE_SAME(copy_within, cuMemcpyDtoDAsync);
  TERRACE_SAME(set_bytes, cuMemsetD8Async);
  TERRACE_SAME(event_create, cuEventCreate);
  TERRACE_SAME(event_destroy, cuEventDestroy);
  TERRACE_SAME(event_record, cuEventRecord);
  TERRACE_SAME(event_synchronize, cuEventSynchronize);
  TERRACE_SAME(event_query, cuEventQuery);
  // None is left out: an Api is its entry points, and a reference.
  EXPECT_EQ(sizeof(Api), compared * sizeof(Entry<unsigned>) + sizeof(Symbols*));
  Context context = nullptr;
  ASSERT_TRUE(api().primary_retain(&context, 0));
  EXPECT_TRUE(api().primary_release(0));
}

}  // namespace
}  // namespace terrace::cuda
