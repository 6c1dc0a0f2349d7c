// SPDX-License-Identifier: Apache-2.0
// Element types of tensors.
#pragma once

#include <cstdint>

namespace terrace {

// Numbers travel in shared memory and gRPC: they never change.
enum class DType : std::uint32_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat16 = 6,
  kBfloat16 = 7,
  kFloat32 = 8,
  kFloat64 = 9,
  kBool = 10,
  kComplex64 = 11,
  kComplex128 = 12,
  kFloat8E4m3 = 13,
  kFloat8E5m2 = 14,
  kUint16 = 15,
  kUint32 = 16,
  kUint64 = 17,
};

// Bytes of one element; 0 for a number that is no DType.
constexpr std::uint32_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kInt8:
    case DType::kBool:
    case DType::kFloat8E4m3:
    case DType::kFloat8E5m2:
      return 1;
    case DType::kInt16:
    case DType::kUint16:
    case DType::kFloat16:
    case DType::kBfloat16:
      return 2;
    case DType::kInt32:
    case DType::kUint32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kUint64:
    case DType::kFloat64:
    case DType::kComplex64:
      return 8;
    case DType::kComplex128:
      return 16;
  }
  return 0;
}

}  // namespace terrace
