// SPDX-License-Identifier: Apache-2.0
// The fake CUDA driver's devices, streams and events as PyTorch's: what is launched runs on the driver's streams, which
// take turns (gpu/fake_cuda/turns.h), and what went wrong there is raised as PyTorch raises it of a GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/fake_cuda/state.h"

namespace terrace::torch_device {

inline constexpr c10::DeviceType kKind = c10::DeviceType::PrivateUse1;

// What a test asks about the whole process.
struct Counters {
  std::atomic<std::int64_t> launches{0};
  std::atomic<std::int64_t> synchronous{
      0};                              // launches that had to be waited for, since nothing told their results' shapes
  std::atomic<std::int64_t> waits{0};  // of the host, for a stream or an event
};
Counters& counters();

int device_count();
int current_device();  // the calling thread's
int exchange_device(int device);
// A number that stands for a device; negative: the current one.
int resolved(int device);

// A device's context is the driver's current one meanwhile.
class WithContext {
 public:
  explicit WithContext(int device);
  ~WithContext();
  WithContext(const WithContext&) = delete;
  WithContext& operator=(const WithContext&) = delete;
};

// A stream's id is its handle in the driver, 0 of the default one.
c10::Stream stream_of(int device, c10::StreamId id);
c10::Stream current_stream(int device);  // the calling thread's
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream new_stream(int device);
fake_cuda::StreamState& state_of(const c10::Stream& stream);

// Memory of a device that a kernel goes over.
struct Touched {
  const void* address = nullptr;
  std::size_t bytes = 0;
  bool written = false;
};

// Puts a kernel in a stream. One that touches what is not mapped, or writes to what may be read alone, does not run;
// that, and an exception that it throws, ends the context. Raises what has ended it before.
void launch(const c10::Stream& stream, std::string name, std::function<void()> work, std::vector<Touched> touched = {});
void synchronize(const c10::Stream& stream);
void synchronize_device(int device);

// Raises torch.AcceleratorError with the driver's code where the device is lost, or a kernel has ended this process's
// context on it, as every call on a GPU does from then on.
void check(int device);
// The same of a call's status.
void check(int status, const char* call);
// Forgets what ended contexts: for tests, which no GPU would allow.
void mend();

// A point in a stream.
class Mark {
 public:
  Mark() = default;  // before everything
  explicit Mark(const c10::Stream& stream);
  bool passed() const;
  void wait() const;
  // What is put in the stream from now on runs behind the mark.
  void hold_back(const c10::Stream& stream) const;

 private:
  std::shared_ptr<fake_cuda::EventState> event_;
};

// Where kernels find what a device has at an address.
char* mirror_of(const void* address);

}  // namespace terrace::torch_device
