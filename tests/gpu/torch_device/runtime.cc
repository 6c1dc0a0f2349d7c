// SPDX-License-Identifier: Apache-2.0
#include "gpu/torch_device/runtime.h"

#include <Python.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <utility>

#include "gpu/torch_device/driver.h"

namespace terrace::torch_device {
namespace {

struct Device {
  int number = 0;  // on the machine
  cuda::Context context = nullptr;
};

std::vector<Device>& devices() {
  static auto* const all = [] {
    auto* made = new std::vector<Device>;
    int count = 0;
    if (cuInit(0) == 0) cuDeviceGetCount(&count);
    for (int each = 0; each < count; ++each) {
      Device device;
      check(cuDeviceGet(&device.number, each), "cuDeviceGet");
      check(cuDevicePrimaryCtxRetain(&device.context, device.number), "cuDevicePrimaryCtxRetain");
      made->push_back(device);
    }
    return made;
  }();
  return *all;
}

thread_local int the_device = 0;
thread_local bool has_context = false;
thread_local std::map<int, c10::StreamId> the_streams;

struct Made {
  std::mutex mutex;
  std::map<int, std::vector<c10::StreamId>> streams;  // by device, but the default ones
  std::map<int, std::string> ended_by;                // by device on the machine: what a kernel said
};
Made& made() {
  static auto* const the = new Made;
  return *the;
}

// Kernels may need the GIL, and who waits for them must not have it.
class WithoutGil {
 public:
  WithoutGil() : state_(PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

void end_context(int device, int status, std::string said) {
  {
    const std::lock_guard lock(made().mutex);
    made().ended_by.emplace(device, std::move(said));
  }
  const std::lock_guard lock(fake_cuda::state().mutex);
  fake_cuda::state().broken.emplace(device, status);
}

// Has the calling thread's context be its device's, as CUDA's runtime has it of who uses a GPU.
void be_current() {
  cuda::Context before = nullptr;
  if (std::exchange(has_context, true)) cuCtxPopCurrent_v2(&before);
  cuCtxPushCurrent_v2(devices().at(the_device).context);
}

bool may_touch(const Touched& each) {
  const int access = each.written ? cuda::kAccessReadWrite : cuda::kAccessRead;
  return fake_cuda::pieces(reinterpret_cast<cuda::Pointer>(each.address), each.bytes, access,
                           [](std::byte*, std::size_t) {});
}

}  // namespace

Counters& counters() {
  static auto* const the = new Counters;
  return *the;
}

int device_count() { return static_cast<int>(devices().size()); }
int current_device() { return the_device; }
int resolved(int device) { return device < 0 ? the_device : device; }
int exchange_device(int device) {
  TORCH_CHECK(device < device_count(), "there is no device ", device, ": there are ", device_count());
  if (device < 0 || device == the_device) return the_device;
  const int before = std::exchange(the_device, device);
  be_current();
  return before;
}

WithContext::WithContext(int device) { cuCtxPushCurrent_v2(devices().at(resolved(device)).context); }
WithContext::~WithContext() {
  cuda::Context gone = nullptr;
  cuCtxPopCurrent_v2(&gone);
}

c10::Stream stream_of(int device, c10::StreamId id) {
  const c10::Device where(kKind, static_cast<c10::DeviceIndex>(resolved(device)));
  return c10::Stream(c10::Stream::UNSAFE, where, id);
}

c10::Stream current_stream(int device) {
  const auto found = the_streams.find(resolved(device));
  return stream_of(device, found == the_streams.end() ? 0 : found->second);
}

c10::Stream exchange_stream(c10::Stream stream) {
  const c10::Stream before = current_stream(stream.device_index());
  the_streams[stream.device_index()] = stream.id();
  return before;
}

c10::Stream new_stream(int device) {
  check(device);
  const WithContext with(device);
  cuda::Stream stream = nullptr;
  check(cuStreamCreateWithPriority(&stream, cuda::kStreamNonBlocking, 0), "cuStreamCreateWithPriority");
  const auto id = reinterpret_cast<c10::StreamId>(stream);
  const std::lock_guard lock(made().mutex);
  made().streams[resolved(device)].push_back(id);
  return stream_of(device, id);
}

fake_cuda::StreamState& state_of(const c10::Stream& stream) {
  const WithContext with(stream.device_index());
  return *fake_cuda::stream_of(reinterpret_cast<cuda::Stream>(stream.id()));
}

void launch(const c10::Stream& stream, std::string name, std::function<void()> work, std::vector<Touched> touched) {
  check(stream.device_index());
  if (!has_context) be_current();
  counters().launches.fetch_add(1);
  const int device = devices().at(stream.device_index()).number;
  state_of(stream).push([=, name = std::move(name), work = std::move(work), touched = std::move(touched)](int before) {
    if (before != 0 || fake_cuda::broken(device) != 0) return before;
    for (const Touched& each : touched) {
      if (each.bytes == 0 || may_touch(each)) continue;
      end_context(device, cuda::kIllegalAddress,
                  name + (each.written ? " writes to" : " reads") + " an address that it may not");
      return 0;
    }
    try {
      work();
    } catch (const c10::Error& error) {
      end_context(device, cuda::kAssert, name + ": " + error.what_without_backtrace());
    } catch (const std::exception& error) {
      end_context(device, cuda::kAssert, name + ": " + error.what());
    }
    return 0;
  });
}

void synchronize(const c10::Stream& stream) {
  counters().waits.fetch_add(1);
  {
    const WithoutGil without;
    state_of(stream).drain();
  }
  check(stream.device_index());
}

void synchronize_device(int device) {
  std::vector<c10::StreamId> ids{0};
  {
    const std::lock_guard lock(made().mutex);
    const auto& others = made().streams[resolved(device)];
    ids.insert(ids.end(), others.begin(), others.end());
  }
  for (const c10::StreamId id : ids) synchronize(stream_of(device, id));
}

void check(int status, const char* call) {
  if (status == 0) return;
  const char* name = nullptr;
  cuGetErrorName(status, &name);
  throw c10::AcceleratorError(
      {__func__, __FILE__, __LINE__}, status,
      c10::str("the test device: ", name != nullptr ? name : "an error", " (", status, "): ", call));
}

void check(int device) {
  const int number = devices().at(resolved(device)).number;
  const int status = fake_cuda::broken(number);
  if (status == 0) return;
  std::string said;
  {
    const std::lock_guard lock(made().mutex);
    const auto found = made().ended_by.find(number);
    said = found == made().ended_by.end() ? c10::str("device ", resolved(device)) : found->second;
  }
  check(status, said.c_str());
}

void mend() {
  {
    const std::lock_guard lock(made().mutex);
    made().ended_by.clear();
  }
  const std::lock_guard lock(fake_cuda::state().mutex);
  fake_cuda::state().broken.clear();
}

Mark::Mark(const c10::Stream& stream) : event_(std::make_shared<fake_cuda::EventState>()) {
  event_->device = devices().at(stream.device_index()).number;
  state_of(stream).record(event_);
}

bool Mark::passed() const {
  if (event_ == nullptr) return true;
  const std::lock_guard lock(event_->mutex);
  return fake_cuda::status_of(*event_) != cuda::kNotReady;
}

void Mark::wait() const {
  if (event_ == nullptr) return;
  counters().waits.fetch_add(1);
  const WithoutGil without;
  fake_cuda::wait_for(*event_);
}

void Mark::hold_back(const c10::Stream& stream) const {
  if (event_ != nullptr) state_of(stream).await(event_);
}

char* mirror_of(const void* address) {
  std::byte* const found = fake_cuda::mirror_of(reinterpret_cast<cuda::Pointer>(address));
  TORCH_CHECK(found != nullptr, "no memory of a device is at ", address);
  return reinterpret_cast<char*>(found);
}

}  // namespace terrace::torch_device
