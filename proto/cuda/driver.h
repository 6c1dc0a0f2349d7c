// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, found at run time (DESIGN decision 11): one binary serves nodes with and without a GPU.
#pragma once

#include <memory>
#include <string>

#include "cuda/abi.h"
#include "terrace/error.h"

namespace terrace::cuda {

// What a code that is no success means: kResourceExhausted (just now: no memory, another process has the device for
// itself, or the system is not ready for it), kDataLoss (is_lost()), kUnavailable (the driver does not know why, or is
// another than its library), kFailedPrecondition (no device, or not one that can do this), kPermissionDenied, else
// kInternal. The message names call, code and number: "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)".
Error error_of(const char* call, Status status);

// Whether a context that says this is of no more use, for good: it was destroyed, or a fault has ended it. Nothing that
// it had begun runs any more.
bool is_lost(Status status);

// The library's symbols as they are asked for.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}
  void* find(const char* name);
  // The first that was not there; null: all were.
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

// One entry point. Thread-safe, as the driver is.
template <typename... Parameters>
class Entry {
 public:
  using Function = Status (*)(Parameters...);
  Entry(Symbols& symbols, const char* name) : name_(name), function_(reinterpret_cast<Function>(symbols.find(name))) {}

  Result<void> operator()(Parameters... parameters) const {
    const Status status = function_(parameters...);
    if (status != kSuccess) return std::unexpected(error_of(name_, status));
    return {};
  }
  // The code itself, where it decides what to do.
  Status status(Parameters... parameters) const { return function_(parameters...); }
  const char* name() const { return name_; }

 private:
  const char* name_;
  Function function_;
};

class Api {
 public:
  explicit Api(Symbols& symbols) : symbols_(symbols) {}

 private:
  Symbols& symbols_;  // while this is made

 public:
  Entry<unsigned> init{symbols_, "cuInit"};
  Entry<Status, const char**> error_name{symbols_, "cuGetErrorName"};
  Entry<int*> driver_version{symbols_, "cuDriverGetVersion"};
  Entry<int*> device_count{symbols_, "cuDeviceGetCount"};
  Entry<Device*, int> device{symbols_, "cuDeviceGet"};
  Entry<char*, int, Device> device_name{symbols_, "cuDeviceGetName"};
  Entry<Uuid*, Device> device_uuid{symbols_, "cuDeviceGetUuid_v2"};
  Entry<char*, int, Device> device_pci_bus_id{symbols_, "cuDeviceGetPCIBusId"};
  Entry<int*, int, Device> device_attribute{symbols_, "cuDeviceGetAttribute"};
  Entry<Context*, Device> primary_retain{symbols_, "cuDevicePrimaryCtxRetain"};
  Entry<Device> primary_release{symbols_, "cuDevicePrimaryCtxRelease_v2"};
  Entry<Device, unsigned> primary_set_flags{symbols_, "cuDevicePrimaryCtxSetFlags_v2"};
  Entry<Device, unsigned*, int*> primary_state{symbols_, "cuDevicePrimaryCtxGetState"};
  Entry<Context> context_push{symbols_, "cuCtxPushCurrent_v2"};
  Entry<Context*> context_pop{symbols_, "cuCtxPopCurrent_v2"};
  Entry<int*, int*> stream_priorities{symbols_, "cuCtxGetStreamPriorityRange"};
  Entry<std::size_t*, std::size_t*> memory_info{symbols_, "cuMemGetInfo_v2"};
  Entry<Pointer*, std::size_t> memory_allocate{symbols_, "cuMemAlloc_v2"};
  Entry<Pointer> memory_free{symbols_, "cuMemFree_v2"};
  Entry<Allocation*, std::size_t, const AllocationProperties*, Flags64> create{symbols_, "cuMemCreate"};
  Entry<Allocation> release{symbols_, "cuMemRelease"};
  Entry<std::size_t*, const AllocationProperties*, int> granularity{symbols_, "cuMemGetAllocationGranularity"};
  Entry<void*, Allocation, int, Flags64> export_handle{symbols_, "cuMemExportToShareableHandle"};
  Entry<Allocation*, void*, int> import_handle{symbols_, "cuMemImportFromShareableHandle"};
  Entry<Pointer*, std::size_t, std::size_t, Pointer, Flags64> reserve{symbols_, "cuMemAddressReserve"};
  Entry<Pointer, std::size_t> unreserve{symbols_, "cuMemAddressFree"};
  Entry<Pointer, std::size_t, std::size_t, Allocation, Flags64> map{symbols_, "cuMemMap"};
  Entry<Pointer, std::size_t> unmap{symbols_, "cuMemUnmap"};
  Entry<Pointer, std::size_t, const AccessDescription*, std::size_t> set_access{symbols_, "cuMemSetAccess"};
  Entry<void*, std::size_t, unsigned> host_register{symbols_, "cuMemHostRegister_v2"};
  Entry<void*> host_unregister{symbols_, "cuMemHostUnregister"};
  Entry<Stream*, unsigned, int> stream_create{symbols_, "cuStreamCreateWithPriority"};
  Entry<Stream> stream_destroy{symbols_, "cuStreamDestroy_v2"};
  Entry<Stream> stream_synchronize{symbols_, "cuStreamSynchronize"};
  Entry<Stream, Context*> stream_context{symbols_, "cuStreamGetCtx"};
  Entry<Stream, CaptureStatus*> stream_is_capturing{symbols_, "cuStreamIsCapturing"};
  Entry<CaptureMode*> exchange_capture_mode{symbols_, "cuThreadExchangeStreamCaptureMode"};
  Entry<Pointer, const void*, std::size_t, Stream> copy_up{symbols_, "cuMemcpyHtoDAsync_v2"};
  Entry<void*, Pointer, std::size_t, Stream> copy_down{symbols_, "cuMemcpyDtoHAsync_v2"};
  Entry<Pointer, Pointer, std::size_t, Stream> copy_within{symbols_, "cuMemcpyDtoDAsync_v2"};
  Entry<Pointer, unsigned char, std::size_t, Stream> set_bytes{symbols_, "cuMemsetD8Async"};
  Entry<Event*, unsigned> event_create{symbols_, "cuEventCreate"};
  Entry<Event> event_destroy{symbols_, "cuEventDestroy_v2"};
  Entry<Event, Stream> event_record{symbols_, "cuEventRecord"};
  Entry<Event> event_synchronize{symbols_, "cuEventSynchronize"};
  Entry<Event> event_query{symbols_, "cuEventQuery"};
};

// The library where nobody names another: $TERRACE_CUDA_LIBRARY (for tests), else libcuda.so.1.
std::string library_path();

// Loads the library and initializes CUDA in this process, once a path; it stays loaded, and its Api valid, until the
// process ends. kFailedPrecondition says why there is no CUDA here (no library, an entry point it lacks, no device).
Result<const Api*> load(const std::string& path = library_path());
// The same if somebody in this process has loaded that library already, else null: does nothing by itself.
const Api* loaded(const std::string& path = library_path());

// Makes a context current on this thread for as long as it lives.
class Current {
 public:
  Current(const Api& api, Context context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  // Whether it is.
  const Result<void>& result() const { return result_; }

 private:
  const Api& api_;
  Result<void> result_;
};

// Lets this thread call what it likes, for as long as it lives, while somebody in the process captures a graph. Many
// calls are refused otherwise, and end the capture, though nothing of ours belongs into it.
class Relaxed {
 public:
  explicit Relaxed(const Api& api);
  ~Relaxed();
  Relaxed(const Relaxed&) = delete;
  Relaxed& operator=(const Relaxed&) = delete;

 private:
  const Api& api_;
  CaptureMode mode_ = kCaptureRelaxed;  // then the one before
};

}  // namespace terrace::cuda
