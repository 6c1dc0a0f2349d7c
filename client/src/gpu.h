// SPDX-License-Identifier: Apache-2.0
// A GPU as this process has it: memory that the daemon exports is mapped there, and host memory pinned for it. The
// driver is found at run time, and loaded by the first segment that is a GPU's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuda/driver.h"
#include "terrace/error.h"

namespace terrace::client {

// Thread-safe, also while the process captures a CUDA graph.
class Gpu {
 public:
  // kFailedPrecondition where this process has no driver, or was not given that GPU (CUDA_VISIBLE_DEVICES).
  static Result<std::shared_ptr<Gpu>> find(const std::array<std::uint8_t, 16>& uuid);
  // The number that find() would give it, without a context of it.
  static Result<int> ordinal_of(const std::array<std::uint8_t, 16>& uuid);
  // One that this process computes on already: nothing is loaded, and no context made. Null: there is none.
  static std::shared_ptr<Gpu> in_use();
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // The process's own number for it, as PyTorch's.
  int ordinal() const { return ordinal_; }
  cuda::Context context() const { return context_; }
  const cuda::Api& api() const { return api_; }

  // Address space for segments, all of it unmapped again before it is given back.
  Result<std::byte*> reserve(std::uint64_t bytes) const;
  void give_back(std::byte* range, std::uint64_t bytes) const;
  Result<void> map(std::byte* at, std::uint64_t bytes, int fd) const;
  Result<void> unmap(std::byte* at, std::uint64_t bytes) const;

  // Pins host memory for every GPU of the process; `read_only`: memory that may not be written. False: it is not
  // pinned, and copies from it are slower.
  bool pin(std::byte* memory, std::uint64_t bytes, bool read_only) const;
  void unpin(std::byte* memory) const;
  bool pins_read_only() const;

 private:
  Gpu(const cuda::Api& api, int ordinal) : api_(api), ordinal_(ordinal) {}
  static Result<std::shared_ptr<Gpu>> open(const cuda::Api& api, int ordinal);

  const cuda::Api& api_;
  const int ordinal_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
};

}  // namespace terrace::client
