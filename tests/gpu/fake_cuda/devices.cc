// SPDX-License-Identifier: Apache-2.0
// The fake driver's entry points: the driver itself, devices, contexts, streams and events.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "gpu/fake_cuda/entry.h"

namespace terrace::fake_cuda {
namespace {

thread_local std::vector<cuda::Context> stack;

// 1 and 2 are the default streams by the names that they have beside null.
bool is_default(cuda::Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

// The driver has threads of its own from here on, with the signal mask of who came first.
void start_thread() {
  static const bool started = [] {
    std::thread([] {
      while (true) ::pause();
    }).detach();
    return true;
  }();
  static_cast<void>(started);
}

}  // namespace

cuda::Context current() { return stack.empty() ? nullptr : stack.back(); }

extern "C" {

Status cuInit(unsigned flags) {
  if (const Status failed = begin(Call::kInit)) return failed;
  if (flags != 0) return cuda::kInvalidValue;
  if (visible_count() == 0) return cuda::kNoDevice;
  state().initialized = true;
  start_thread();
  return 0;
}

Status cuGetErrorName(Status status, const char** name) {
  static const std::map<Status, const char*> kNames = {{0, "CUDA_SUCCESS"},
                                                       {1, "CUDA_ERROR_INVALID_VALUE"},
                                                       {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                       {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
                                                       {100, "CUDA_ERROR_NO_DEVICE"},
                                                       {101, "CUDA_ERROR_INVALID_DEVICE"},
                                                       {201, "CUDA_ERROR_INVALID_CONTEXT"},
                                                       {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
                                                       {304, "CUDA_ERROR_OPERATING_SYSTEM"},
                                                       {600, "CUDA_ERROR_NOT_READY"},
                                                       {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                       {710, "CUDA_ERROR_ASSERT"},
                                                       {719, "CUDA_ERROR_LAUNCH_FAILED"},
                                                       {800, "CUDA_ERROR_NOT_PERMITTED"},
                                                       {801, "CUDA_ERROR_NOT_SUPPORTED"}};
  const auto found = kNames.find(status);
  *name = found == kNames.end() ? nullptr : found->second;
  return found == kNames.end() ? cuda::kInvalidValue : 0;
}

Status cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

Status cuDeviceGetCount(int* count) {
  if (!state().initialized) return cuda::kNotInitialized;
  *count = visible_count();
  return 0;
}

Status cuDeviceGet(int* device, int ordinal) {
  if (!state().initialized) return cuda::kNotInitialized;
  if (ordinal < 0 || ordinal >= visible_count()) return cuda::kInvalidDevice;
  *device = physical(ordinal);
  const std::lock_guard lock(state().mutex);
  state().given.insert(*device);
  return 0;
}

Status cuDeviceGetName(char* name, int size, int device) {
  if (!is_visible(device)) return cuda::kInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(size), "Fake GPU %d", device);
  return 0;
}

Status cuDeviceGetUuid_v2(cuda::Uuid* uuid, int device) {
  if (!is_visible(device)) return cuda::kInvalidDevice;
  *uuid = {'f', 'a', 'k', 'e', '-', 'g', 'p', 'u', 0, 0, 0, 0, 0, 0, 0, static_cast<unsigned char>(device + 1)};
  return 0;
}

Status cuDeviceGetPCIBusId(char* id, int size, int device) {
  if (!is_visible(device)) return cuda::kInvalidDevice;
  std::snprintf(id, static_cast<std::size_t>(size), "0000:%02x:00.0", device + 1);
  return 0;
}

Status cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (!is_visible(device)) return cuda::kInvalidDevice;
  constexpr std::array kKnown = {cuda::kAttributeVirtualMemory, cuda::kAttributePosixDescriptors,
                                 cuda::kAttributeReadOnlyHostRegister};
  if (std::ranges::find(kKnown, attribute) == kKnown.end()) return cuda::kInvalidValue;
  *value = 1;
  return 0;
}

Status cuDevicePrimaryCtxRetain(cuda::Context* context, int device) {
  if (!is_visible(device)) return cuda::kInvalidDevice;
  if (const Status failed = begin(Call::kRetain, device)) return failed;
  const std::lock_guard lock(state().mutex);
  ++state().retained[device];
  *context = context_of(device);
  return 0;
}

Status cuDevicePrimaryCtxRelease_v2(int device) {
  const std::lock_guard lock(state().mutex);
  if (state().retained[device] <= 0) return cuda::kInvalidContext;
  --state().retained[device];
  return 0;
}

Status cuDevicePrimaryCtxSetFlags_v2(int /*device*/, unsigned) { return 0; }

Status cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (!is_visible(device)) return cuda::kInvalidDevice;
  const std::lock_guard lock(state().mutex);
  *flags = 0;
  *active = state().retained[device] > 0 ? 1 : 0;
  return 0;
}

Status cuCtxPushCurrent_v2(cuda::Context context) {
  if (context == nullptr) return cuda::kInvalidContext;
  stack.push_back(context);
  return 0;
}

Status cuCtxPopCurrent_v2(cuda::Context* context) {
  if (stack.empty()) return cuda::kInvalidContext;
  *context = stack.back();
  stack.pop_back();
  return 0;
}

Status cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}

Status cuStreamCreateWithPriority(cuda::Stream* stream, unsigned flags, int) {
  if (flags > cuda::kStreamNonBlocking) return cuda::kInvalidValue;
  if (current() == nullptr) return cuda::kInvalidContext;
  if (const Status failed = begin(Call::kStreamCreate, device_of(current()))) return failed;
  *stream = reinterpret_cast<cuda::Stream>(new StreamState(current()));
  return 0;
}

Status cuStreamDestroy_v2(cuda::Stream stream) {
  delete reinterpret_cast<StreamState*>(stream);
  return 0;
}

Status cuStreamSynchronize(cuda::Stream stream) {
  StreamState* found = stream_of(stream);
  if (found == nullptr) return cuda::kInvalidContext;
  if (const Status refused = prohibited()) return refused;
  found->drain();
  return broken(device_of(found->context()));
}

Status cuStreamGetCtx(cuda::Stream stream, cuda::Context* context) {
  *context = is_default(stream) ? current() : reinterpret_cast<StreamState*>(stream)->context();
  return *context == nullptr ? cuda::kInvalidContext : 0;
}

// An event is held by whoever it is recorded in, too.
Status cuEventCreate(cuda::Event* event, unsigned flags) {
  constexpr unsigned kForOtherProcesses = 4;
  if ((flags & ~(cuda::kEventBlockingSync | cuda::kEventDisableTiming | kForOtherProcesses)) != 0)
    return cuda::kInvalidValue;
  if (current() == nullptr) return cuda::kInvalidContext;
  auto* made = new std::shared_ptr<EventState>(std::make_shared<EventState>());
  (*made)->device = device_of(current());
  *event = reinterpret_cast<cuda::Event>(made);
  return 0;
}

Status cuEventDestroy_v2(cuda::Event event) {
  delete reinterpret_cast<std::shared_ptr<EventState>*>(event);
  return 0;
}

Status cuEventRecord(cuda::Event event, cuda::Stream stream) {
  const auto recorded = *reinterpret_cast<std::shared_ptr<EventState>*>(event);
  if (const Status failed = begin(Call::kEventRecord, recorded->device)) return failed;
  StreamState* found = stream_of(stream);
  if (found == nullptr || device_of(found->context()) != recorded->device) return cuda::kInvalidHandle;
  found->record(recorded);
  return 0;
}

Status cuEventSynchronize(cuda::Event event) {
  const auto awaited = *reinterpret_cast<std::shared_ptr<EventState>*>(event);
  if (const Status failed = begin(Call::kEventSynchronize, awaited->device)) return failed;
  return wait_for(*awaited);
}

Status cuEventQuery(cuda::Event event) {
  const auto asked = *reinterpret_cast<std::shared_ptr<EventState>*>(event);
  if (const Status failed = begin(Call::kEventQuery)) return failed;
  const std::lock_guard lock(asked->mutex);
  return asked->captured ? kCapturedEvent : status_of(*asked);
}

Status cuThreadExchangeStreamCaptureMode(cuda::CaptureMode* mode) {
  if (*mode < cuda::kCaptureGlobal || *mode > cuda::kCaptureRelaxed) return cuda::kInvalidValue;
  *mode = exchange_capture_mode(*mode);
  return 0;
}

Status cuStreamBeginCapture_v2(cuda::Stream stream, cuda::CaptureMode mode) {
  StreamState* found = stream_of(stream);
  if (found == nullptr) return cuda::kInvalidContext;
  if (is_default(stream)) return cuda::kStreamCaptureUnsupported;
  if (found->capturing.exchange(true)) return cuda::kInvalidValue;
  const std::lock_guard lock(state().mutex);
  state().captures.push_back({.stream = found, .thread = std::this_thread::get_id(), .mode = mode});
  return 0;
}

// The graph is not kept: nobody launches it.
Status cuStreamEndCapture(cuda::Stream stream, void** graph) {
  const std::lock_guard lock(state().mutex);
  const auto found = std::ranges::find(state().captures, reinterpret_cast<StreamState*>(stream), &Capture::stream);
  if (found == state().captures.end()) return cuda::kInvalidValue;
  const Capture ended = *found;
  if (ended.mode != cuda::kCaptureRelaxed && ended.thread != std::this_thread::get_id()) return kCaptureWrongThread;
  state().captures.erase(found);
  ended.stream->capturing = false;
  *graph = nullptr;
  return ended.broken ? kCaptureInvalidated : cuda::kSuccess;
}

Status cuStreamIsCapturing(cuda::Stream stream, cuda::CaptureStatus* status) {
  StreamState* found = stream_of(stream);
  if (found == nullptr) return cuda::kInvalidContext;
  const std::lock_guard lock(state().mutex);
  const auto capture = std::ranges::find(state().captures, found, &Capture::stream);
  *status = capture == state().captures.end() ? 0 : capture->broken ? 2 : 1;
  return 0;
}

}  // extern "C"

}  // namespace terrace::fake_cuda

extern "C" terrace::fake_cuda::Control* terrace_fake_cuda_control() { return &terrace::fake_cuda::control(); }
