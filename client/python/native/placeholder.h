// SPDX-License-Identifier: Apache-2.0
// Memory that stands for tensors while their bytes are elsewhere: address space over a little memory of all one bits.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <optional>

namespace terrace::python {

// The Python object `_terrace.Placeholder`: `bytes` of address space that cannot be written, and in which every
// floating point number is NaN: the CPU's, or that of the GPU with this number. It costs two MiB of memory there, or
// one part in 8192 of it where that is more. What was exported keeps it mapped.
class Placeholder {
 public:
  Placeholder(std::size_t bytes, std::optional<int> cuda_device);

  // A DLPack capsule ("dltensor", bytes) of a part of it.
  nanobind::object part(std::size_t offset, std::size_t bytes) const;
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
  std::optional<int> cuda_device_;
  std::shared_ptr<const std::byte> memory_;
};

void bind_placeholder(nanobind::module_& module);

}  // namespace terrace::python
