// SPDX-License-Identifier: Apache-2.0
#include "dlpack.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace terrace::python {

namespace nb = nanobind;

namespace {

// The structures of DLPack 1.x, as its C header lays them out.
struct DlDevice {
  std::int32_t type = 1;  // kDLCPU
  std::int32_t index = 0;
};
struct DlDataType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;
};
struct DlTensor {
  void* data = nullptr;
  DlDevice device;
  std::int32_t rank = 0;
  DlDataType dtype;
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;
  std::uint64_t byte_offset = 0;
};
struct DlManagedTensor {
  DlTensor tensor;
  void* context = nullptr;
  void (*deleter)(DlManagedTensor*) = nullptr;
};
struct DlManagedTensorVersioned {
  std::uint32_t major = 1;
  std::uint32_t minor = 0;
  void* context = nullptr;
  void (*deleter)(DlManagedTensorVersioned*) = nullptr;
  std::uint64_t flags = 0;
  DlTensor tensor;
};
static_assert(sizeof(DlTensor) == 48 && sizeof(DlManagedTensor) == 64 && sizeof(DlManagedTensorVersioned) == 80);
constexpr std::uint64_t kFlagReadOnly = 1;

DlDevice dl_device(std::optional<int> gpu) {
  constexpr std::int32_t kCuda = 2;
  return gpu ? DlDevice{.type = kCuda, .index = *gpu} : DlDevice{};
}

DlDataType dl_type(DType dtype) {
  enum Code : std::uint8_t { kInt, kUint, kFloat, kBfloat = 4, kComplex = 5, kBool = 6, kE4m3 = 10, kE5m2 = 12 };
  const auto bits = static_cast<std::uint8_t>(8 * element_bytes(dtype));
  switch (dtype) {
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return {kInt, bits};
    case DType::kUint8:
    case DType::kUint16:
    case DType::kUint32:
    case DType::kUint64:
      return {kUint, bits};
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return {kFloat, bits};
    case DType::kBfloat16:
      return {kBfloat, bits};
    case DType::kComplex64:
    case DType::kComplex128:
      return {kComplex, bits};
    case DType::kBool:
      return {kBool, bits};
    case DType::kFloat8E4m3:
      return {kE4m3, bits};
    case DType::kFloat8E5m2:
      return {kE5m2, bits};
  }
  return {kUint, 8};
}

// What one capsule points to: the structure that is handed out, what it points to, and its part of the lease or of
// whatever else owns the memory.
template <typename Managed>
struct Export {
  Managed managed;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::shared_ptr<const void> owner;
};

// The consumer is done, on any thread, with or without the GIL: nothing here knows of Python.
template <typename Managed>
void drop(Managed* managed) {
  delete static_cast<Export<Managed>*>(managed->context);
}

// A capsule that nobody consumed (consuming renames it) is still ours.
template <typename Managed, const char* const& Name>
void drop_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, Name) == 0) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, Name));
  managed->deleter(managed);
}

constexpr const char* kVersionedName = "dltensor_versioned";
constexpr const char* kUnversionedName = "dltensor";

template <typename Managed, const char* const& Name>
nb::object to_capsule(std::unique_ptr<Export<Managed>> made, std::shared_ptr<const void> owner) {
  made->managed.context = made.get();
  made->managed.deleter = drop<Managed>;
  made->owner = std::move(owner);
  PyObject* capsule = PyCapsule_New(&made->managed, Name, drop_capsule<Managed, Name>);
  if (capsule == nullptr) throw nb::python_error();
  static_cast<void>(made.release());  // the capsule's, then its consumer's
  return nb::steal(capsule);
}

template <typename Managed, const char* const& Name>
nb::object make_capsule(std::shared_ptr<const Hold> hold) {
  auto made = std::make_unique<Export<Managed>>();
  const Tensor& tensor = hold->tensor();
  made->shape = tensor.shape();
  made->strides = tensor.strides();
  made->managed.tensor = {.data = const_cast<std::byte*>(hold->address()),
                          .device = dl_device(hold->cuda_device()),
                          .rank = static_cast<std::int32_t>(made->shape.size()),
                          .dtype = dl_type(tensor.dtype()),
                          .shape = made->shape.data(),
                          .strides = made->strides.data()};
  if constexpr (std::is_same_v<Managed, DlManagedTensorVersioned>)
    made->managed.flags = hold->mode() == Mode::kRead ? kFlagReadOnly : 0;
  return to_capsule<Managed, Name>(std::move(made), std::move(hold));
}

}  // namespace

nb::object dlpack_capsule(std::shared_ptr<const Hold> hold, bool versioned) {
  if (versioned) return make_capsule<DlManagedTensorVersioned, kVersionedName>(std::move(hold));
  return make_capsule<DlManagedTensor, kUnversionedName>(std::move(hold));
}

nb::object dlpack_bytes(const std::byte* address, std::size_t bytes, std::shared_ptr<const void> owner,
                        std::optional<int> cuda_device) {
  auto made = std::make_unique<Export<DlManagedTensor>>();
  made->shape = {static_cast<std::int64_t>(bytes)};
  made->strides = {1};
  made->managed.tensor = {.data = const_cast<std::byte*>(address),
                          .device = dl_device(cuda_device),
                          .rank = 1,
                          .dtype = dl_type(DType::kUint8),
                          .shape = made->shape.data(),
                          .strides = made->strides.data()};
  return to_capsule<DlManagedTensor, kUnversionedName>(std::move(made), std::move(owner));
}

nb::object dlpack_device(const Hold& hold) {
  const DlDevice device = dl_device(hold.cuda_device());
  return nb::make_tuple(device.type, device.index);
}

}  // namespace terrace::python
