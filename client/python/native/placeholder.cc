// SPDX-License-Identifier: Apache-2.0
#include "placeholder.h"

#include <nanobind/stl/optional.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

#include "dlpack.h"
#include "errors.h"
#include "gpu_range.h"

namespace terrace::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

constexpr std::size_t kPieceBytesMin = std::size_t{2} << 20;
// Mappings are counted: Linux allows a process 65530 of them.
constexpr std::size_t kPiecesMax = 8192;

[[noreturn]] void raise_errno(const std::string& what) {
  const int number = errno;
  raise({ErrorCode::kResourceExhausted, "no address space for placeholders: " + what + ": " + std::strerror(number),
         number});
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

// Fills the file with one bits: as a number of any floating point type that is NaN.
void fill(int file, std::size_t bytes) {
  if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) raise_errno("ftruncate");
  void* piece = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (piece == MAP_FAILED) raise_errno("mmap");
  std::memset(piece, 0xFF, bytes);
  ::munmap(piece, bytes);
}

std::shared_ptr<const std::byte> repeat_on_cpu(std::size_t piece, std::size_t whole) {
  const Descriptor file(::memfd_create("terrace-placeholder", MFD_CLOEXEC));
  if (file.number() < 0) raise_errno("memfd_create");
  fill(file.number(), piece);
  void* reserved = ::mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) raise_errno("mmap");
  auto* const base = static_cast<std::byte*>(reserved);
  std::shared_ptr<const std::byte> memory(
      base, [whole](const std::byte* at) { ::munmap(const_cast<std::byte*>(at), whole); });
  for (std::size_t offset = 0; offset < whole; offset += piece)
    if (::mmap(base + offset, piece, PROT_READ, MAP_SHARED | MAP_FIXED, file.number(), 0) == MAP_FAILED)
      raise_errno("mmap");
  return memory;
}

}  // namespace

Placeholder::Placeholder(std::size_t bytes, std::optional<int> cuda_device) : bytes_(bytes), cuda_device_(cuda_device) {
  if (bytes == 0 || bytes > std::size_t{1} << 46)
    raise({ErrorCode::kInvalidArgument, "a placeholder is of 1 byte to 64 TiB"});
  const std::size_t piece = std::max(kPieceBytesMin, std::bit_ceil((bytes + kPiecesMax - 1) / kPiecesMax));
  const std::size_t pieces = (bytes + piece - 1) / piece;
  memory_ =
      cuda_device ? value_or_raise(repeat_on_gpu(*cuda_device, piece, pieces)) : repeat_on_cpu(piece, piece * pieces);
}

nb::object Placeholder::part(std::size_t offset, std::size_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset)
    raise({ErrorCode::kInvalidArgument, "the part lies outside the placeholder"});
  return dlpack_bytes(memory_.get() + offset, bytes, memory_, cuda_device_);
}

void bind_placeholder(nb::module_& module) {
  nb::class_<Placeholder>(module, "Placeholder", "Address space that stands for tensors whose bytes are elsewhere.")
      .def(nb::init<std::size_t, std::optional<int>>(), "bytes"_a, "cuda_device"_a = nb::none())
      .def("part", &Placeholder::part, "offset"_a, "bytes"_a)
      .def_prop_ro("nbytes", &Placeholder::bytes);
}

}  // namespace terrace::python
