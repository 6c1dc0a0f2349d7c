// SPDX-License-Identifier: Apache-2.0
// What tests of HBM end to end begin with: the fake driver in every process, and leases as a trainer's kernels use
// them.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "e2e/terraced.h"
#include "gpu/on_fake.h"

namespace terrace::e2e {

using fake_cuda::Call;
using fake_cuda::count;
using fake_cuda::set_fault;

inline constexpr std::uint64_t kBytes = 3 * kMiB + 500;

// One control for all processes: made before any of them loads the driver.
class SharedControl {
 public:
  SharedControl() {
    path_ = (std::filesystem::temp_directory_path() / "fake-cuda-XXXXXX").string();
    const int fd = ::mkstemp(path_.data());
    if (fd < 0 || ::ftruncate(fd, sizeof(fake_cuda::Control)) != 0) std::abort();
    ::close(fd);
    ::setenv("TERRACE_FAKE_CUDA_CONTROL", path_.c_str(), 1);
    ::setenv("TERRACE_CUDA_LIBRARY", FAKE_CUDA, 1);
    ::setenv("TERRACE_NVML_LIBRARY", FAKE_CUDA, 1);
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    owner_ = ::getpid();
  }
  ~SharedControl() {
    if (::getpid() == owner_) std::filesystem::remove(path_);
  }
  SharedControl(const SharedControl&) = delete;
  SharedControl& operator=(const SharedControl&) = delete;

 private:
  std::string path_;
  pid_t owner_ = 0;
};
inline const SharedControl kShared;

class CudaEnd : public fake_cuda::OnFake {
 protected:
  // Nothing is copied but what a test has copied.
  inline static const TerracedOptions kOnGpu{
      .device_mib = 8, .memory_mib = 16, .block_mib = 64, .device = "cuda:0", .write_back = "late"};

  // What a kernel would do to a lease of a GPU's memory, and what it would see there.
  static void write(const Lease& lease, std::uint64_t version, cuda::Stream stream = nullptr) {
    std::vector<std::byte> content(lease.bytes().size());
    fill(content, 1, version);
    const auto to = reinterpret_cast<std::uintptr_t>(lease.bytes().data());
    ASSERT_TRUE(api().copy_up(to, content.data(), content.size(), stream));
    if (stream != nullptr) return;
    ASSERT_TRUE(api().stream_synchronize(nullptr));
  }
  static bool holds(const Lease& lease, std::uint64_t version) {
    std::vector<std::byte> content(lease.bytes().size());
    const auto from = reinterpret_cast<std::uintptr_t>(lease.bytes().data());
    if (!api().copy_down(content.data(), from, content.size(), nullptr)) return false;
    if (!api().stream_synchronize(nullptr)) return false;
    return first_difference(content, 1, version) == content.size();
  }
  // As a trainer does: all of a host lease in one copy of its own, up to its GPU.
  static bool copies_up(const Lease& lease) {
    cuda::Pointer device = 0;
    if (!api().memory_allocate(&device, lease.bytes().size())) return false;
    const bool copied = api().copy_up(device, lease.bytes().data(), lease.bytes().size(), nullptr).has_value() &&
                        api().stream_synchronize(nullptr).has_value();
    return api().memory_free(device).has_value() && copied;
  }
  // As a deleter does.
  static void release_soon(Lease& lease, cuda::Stream stream) {
    void* const used = stream;
    const Place place = lease.place();
    release_token(lease.detach(), place, {&used, 1});
  }
  // Whether the library looks after what it is to release, and releases nothing.
  bool waits(Client& client) const {
    const std::uint64_t held = client.held();
    const std::uint64_t asked = count(control, Call::kEventQuery);
    return eventually([&] { return count(control, Call::kEventQuery) >= asked + 3; }) && client.held() == held;
  }
  static Tensor make(Client& client, const std::string& name = "a", std::uint64_t bytes = kBytes) {
    const Result<Tensor> made = client.create({.name = name, .bytes = bytes});
    EXPECT_TRUE(made) << made.error().message;
    return made.value_or(Tensor());
  }
  static Result<Lease> lease(Client& client, const Tensor& tensor, Mode mode, Place place = Place::device(0)) {
    return client.acquire(tensor, {.place = place, .mode = mode});
  }

  // As a training process has it: CUDA in use before Terrace is.
  cuda::Context context_ = [] {
    cuda::Context made = nullptr;
    if (!api().primary_retain(&made, 0)) std::abort();
    return made;
  }();
  cuda::Current current_{api(), context_};
};

}  // namespace terrace::e2e
