// SPDX-License-Identifier: Apache-2.0
#include "gpu_range.h"

#include <unistd.h>

#include <cstdint>

#include "cuda/driver.h"

namespace terrace::python {
namespace {

constexpr std::size_t kAlignmentBytes = std::size_t{2} << 20;

class Repeated {
 public:
  Repeated(const cuda::Api& api, std::size_t piece_bytes, std::size_t pieces)
      : api_(api), piece_bytes_(piece_bytes), bytes_(piece_bytes * pieces) {}
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;
  ~Repeated() {
    if (::getpid() != owner_) return;  // a forked child has none of it
    const cuda::Relaxed relaxed(api_);
    for (std::size_t offset = 0; offset < mapped_bytes_; offset += piece_bytes_)
      static_cast<void>(api_.unmap.status(base_ + offset, piece_bytes_));
    if (base_ != 0) static_cast<void>(api_.unreserve.status(base_, bytes_));
    if (context_ != nullptr) static_cast<void>(api_.primary_release.status(device_));
  }

  Result<void> open(int ordinal) {
    const cuda::Relaxed relaxed(api_);
    if (auto done = api_.device(&device_, ordinal); !done) return done;
    if (auto done = api_.primary_retain(&context_, device_); !done) return done;
    if (auto done = api_.reserve(&base_, bytes_, kAlignmentBytes, 0, 0); !done) return done;
    cuda::AllocationProperties properties;
    properties.location.id = device_;
    cuda::Allocation piece = 0;
    if (auto done = api_.create(&piece, piece_bytes_, &properties, 0); !done) return done;
    auto filled = show(piece);
    static_cast<void>(api_.release.status(piece));  // the mappings keep it
    return filled;
  }
  const std::byte* base() const {
    return reinterpret_cast<const std::byte*>(base_);  // NOLINT(performance-no-int-to-ptr)
  }

 private:
  Result<void> show(cuda::Allocation piece) {
    const cuda::Current current(api_, context_);
    if (!current.result()) return current.result();
    for (; mapped_bytes_ < bytes_; mapped_bytes_ += piece_bytes_)
      if (auto done = api_.map(base_ + mapped_bytes_, piece_bytes_, 0, piece, 0); !done) return done;
    cuda::AccessDescription access;
    access.location.id = device_;
    if (auto done = api_.set_access(base_, bytes_, &access, 1); !done) return done;
    if (auto done = api_.set_bytes(base_, 0xFF, piece_bytes_, nullptr); !done) return done;
    if (auto done = api_.stream_synchronize(nullptr); !done) return done;
    access.flags = cuda::kAccessRead;
    static_cast<void>(api_.set_access.status(base_, bytes_, &access, 1));
    return {};
  }

  const cuda::Api& api_;
  const pid_t owner_ = ::getpid();
  const std::size_t piece_bytes_;
  const std::size_t bytes_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Pointer base_ = 0;
  std::size_t mapped_bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<const std::byte>> repeat_on_gpu(int cuda_device, std::size_t piece_bytes, std::size_t pieces) {
  const Result<const cuda::Api*> api = cuda::load();
  if (!api) return std::unexpected(api.error());
  const auto made = std::make_shared<Repeated>(**api, piece_bytes, pieces);
  if (auto opened = made->open(cuda_device); !opened) return std::unexpected(opened.error());
  return std::shared_ptr<const std::byte>(made, made->base());
}

}  // namespace terrace::python
