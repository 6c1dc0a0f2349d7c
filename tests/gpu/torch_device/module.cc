// SPDX-License-Identifier: Apache-2.0
// What Python has of the test device: fakegpu.py makes PyTorch's module of it.
#include <torch/csrc/utils/pybind.h>

#include <chrono>

#include "gpu/fake_cuda/turns.h"
#include "gpu/torch_device/backend.h"
#include "gpu/torch_device/collectives.h"
#include "gpu/torch_device/driver.h"
#include "gpu/torch_device/memory.h"
#include "gpu/torch_device/runtime.h"

namespace terrace::torch_device {
namespace {

namespace py = pybind11;

std::chrono::microseconds microseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::duration<double>(seconds));
}

// DLPack's number for a GPU becomes that for a backend outside of PyTorch: the memory is the same.
at::Tensor from_capsule(const py::object& capsule) {
  struct DlDevice {
    std::int32_t type;
    std::int32_t index;
  };
  constexpr std::int32_t kCuda = 2;
  constexpr std::int32_t kOutside = 12;
  constexpr std::size_t kOfUnversioned = 8;     // behind the address
  constexpr std::size_t kOfVersioned = 32 + 8;  // behind version, context, deleter and flags, too
  for (const auto& [name, offset] :
       {std::pair("dltensor", kOfUnversioned), std::pair("dltensor_versioned", kOfVersioned)}) {
    if (PyCapsule_IsValid(capsule.ptr(), name) == 0) continue;
    auto* const device =
        reinterpret_cast<DlDevice*>(static_cast<char*>(PyCapsule_GetPointer(capsule.ptr(), name)) + offset);
    if (device->type == kCuda) device->type = kOutside;
  }
  return py::module_::import("torch._C").attr("_from_dlpack")(capsule).cast<at::Tensor>();
}

void begin_capture(int device) {
  const WithContext with(device);
  check(cuStreamBeginCapture_v2(reinterpret_cast<cuda::Stream>(current_stream(device).id()), cuda::kCaptureGlobal),
        "cuStreamBeginCapture");
}

void end_capture(int device) {
  const WithContext with(device);
  void* graph = nullptr;
  check(cuStreamEndCapture(reinterpret_cast<cuda::Stream>(current_stream(device).id()), &graph), "cuStreamEndCapture");
}

py::dict counted() {
  py::dict made;
  made["launches"] = counters().launches.load();
  made["synchronous"] = counters().synchronous.load();
  made["waits"] = counters().waits.load();
  return made;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  module.def("take_turns",
             [](std::uint64_t seed, double patience) { fake_cuda::Turns::take(seed, microseconds(patience)); });
  module.def("start_over", [](std::uint64_t seed, double patience) {
    fake_cuda::Turns::taken()->start_over(seed, microseconds(patience));
  });
  module.def("device_count", device_count);
  module.def("current_device", current_device);
  module.def("exchange_device", exchange_device);
  module.def("stream_number", [](int device) { return current_stream(device).id(); });
  module.def("is_capturing", [](int device) { return state_of(current_stream(device)).capturing.load(); });
  module.def("begin_capture", begin_capture);
  module.def("end_capture", end_capture);
  module.def("default_generator", [](int device) { return default_generator(device); });
  module.def("memory_info",
             [](int device) { return device_memory().getMemoryInfo(static_cast<c10::DeviceIndex>(device)); });
  module.def("release_free", release_free, without_gil);
  module.def("from_capsule", from_capsule);
  module.def("mend", mend);
  module.def("counters", counted);
  module.def("collectives_over", collectives_over);
}

}  // namespace terrace::torch_device
