// SPDX-License-Identifier: Apache-2.0
// A test on the fake driver: it begins with a fake that gets nothing wrong, and fails if the fake was never called.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>
#include <string>

#include "cuda/driver.h"
#include "gpu/fake_cuda/control.h"

namespace terrace::fake_cuda {

// What the fake of this process exports by that name.
template <typename Function>
Function* exported(const char* name) {
  static void* const library = ::dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  auto* const found = reinterpret_cast<Function*>(library == nullptr ? nullptr : ::dlsym(library, name));
  if (found == nullptr) throw std::runtime_error(std::string("no fake driver: ") + ::dlerror());
  return found;
}

// The fake of this process.
inline Control& in_process() {
  static Control* const the = exported<decltype(terrace_fake_cuda_control)>("terrace_fake_cuda_control")();
  return *the;
}

inline std::uint64_t calls(const Control& control) {
  return std::accumulate(control.calls.begin(), control.calls.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& each) { return sum + each.load(); });
}

// Gets nothing wrong from now on.
inline void mend(Control& control) {
  control.hold = 0;
  control.hold_registering = 0;
  control.device_count = 0;
  control.absent = 0;
  control.reversed = 0;
  control.device_bytes = 0;
  control.halved = 0;
  for (auto& each : control.lost) each = 0;
  for (Fault& fault : control.faults) fault.status = 0;
  control.copies.status = 0;
}

class OnFake : public testing::Test {
 protected:
  OnFake() : control(in_process()), before_(calls(control)) { mend(control); }
  ~OnFake() override {
    mend(control);
    EXPECT_GT(calls(control), before_) << "the fake driver was not called";
  }

  static const cuda::Api& api() {
    const Result<const cuda::Api*> loaded = cuda::load(FAKE_CUDA);
    if (!loaded) throw std::runtime_error(loaded.error().message);
    return **loaded;
  }

  Control& control;

 private:
  std::uint64_t before_;
};

}  // namespace terrace::fake_cuda
