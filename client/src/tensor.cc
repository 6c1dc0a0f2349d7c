// SPDX-License-Identifier: Apache-2.0
#include "terrace/tensor.h"

#include <algorithm>
#include <utility>

#include "tensor_record.h"

namespace terrace {

std::string Place::name() const {
  if (*this == host()) return "host";
  if (*this == block()) return "block";
  return "device:" + std::to_string(number_ - device(0).number_);
}

Tensor::Tensor(std::shared_ptr<const client::TensorRecord> record) : record_(std::move(record)) {}

// A tensor of no session shares nothing: a count of it would be one that all threads' leases change.
const client::TensorRecord& Tensor::record() const {
  static const client::TensorRecord none;
  return record_ ? *record_ : none;
}

const std::string& Tensor::name() const { return record().spec.name; }
std::uint64_t Tensor::bytes() const { return record().spec.bytes; }
DType Tensor::dtype() const { return record().spec.dtype; }
const std::vector<std::int64_t>& Tensor::shape() const { return record().spec.shape; }
const std::vector<std::int64_t>& Tensor::strides() const { return record().spec.strides; }
std::uint64_t Tensor::handle() const { return record().handle; }

namespace client {
namespace {

constexpr std::size_t kNameBytesMax = sizeof(shm::CreateRecord::name) - 1;
constexpr std::size_t kRankMax = std::tuple_size_v<decltype(shm::CreateRecord::shape)>;

std::unexpected<Error> wrong(const TensorSpec& spec, const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, "tensor \"" + spec.name.substr(0, kNameBytesMax) + "\": " + what);
}

// Fills in row-major strides; false on overflow.
bool fill_strides(TensorSpec& spec) {
  spec.strides.resize(spec.shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = spec.shape.size(); i-- > 0;) {
    spec.strides[i] = stride;
    if (__builtin_mul_overflow(stride, spec.shape[i], &stride)) return false;
  }
  return true;
}

// Bytes from the first element to the end of the last; false on overflow.
bool count_bytes(const TensorSpec& spec, std::uint64_t& bytes) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i] == 0) {
      bytes = 0;
      return true;
    }
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(spec.shape[i] - 1, spec.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return false;
    }
  }
  return !__builtin_mul_overflow(static_cast<std::uint64_t>(last) + 1, std::uint64_t{element_bytes(spec.dtype)},
                                 &bytes);
}

}  // namespace

Result<TensorSpec> complete(const TensorSpec& spec) {
  TensorSpec whole = spec;
  const std::uint32_t element = element_bytes(spec.dtype);
  if (spec.name.empty() || spec.name.size() > kNameBytesMax || spec.name.find('\0') != std::string::npos) {
    return wrong(spec,
                 "a name has 1 to 175 bytes and no zero among them, this one has " + std::to_string(spec.name.size()));
  }
  if (element == 0) {
    return wrong(spec, "there is no dtype " + std::to_string(static_cast<std::uint32_t>(spec.dtype)));
  }
  if (spec.shape.empty() && spec.bytes != 0) {
    if (spec.bytes % element != 0) {
      return wrong(spec, std::to_string(spec.bytes) + " bytes are not whole elements of " + std::to_string(element));
    }
    whole.shape = {static_cast<std::int64_t>(spec.bytes / element)};
  }
  if (whole.shape.size() > kRankMax) {
    return wrong(spec, std::to_string(whole.shape.size()) + " dimensions, at most 8 are possible");
  }
  for (const std::int64_t extent : whole.shape) {
    if (extent < 0) return wrong(spec, "a dimension of " + std::to_string(extent) + " elements");
  }
  if (!spec.strides.empty() && spec.strides.size() != whole.shape.size()) {
    return wrong(spec, std::to_string(spec.strides.size()) + " strides for " + std::to_string(whole.shape.size()) +
                           " dimensions: give one for each, or none");
  }
  for (const std::int64_t stride : spec.strides) {
    if (stride < 0) return wrong(spec, "a stride of " + std::to_string(stride) + ": strides are not negative");
  }
  std::uint64_t needed = 0;
  if ((spec.strides.empty() && !fill_strides(whole)) || !count_bytes(whole, needed)) {
    return wrong(spec, "its size overflows 64 bits");
  }
  if (needed == 0) return wrong(spec, "zero bytes: a tensor has at least one element");
  if (spec.bytes != 0 && spec.bytes < needed) {
    return wrong(spec,
                 std::to_string(spec.bytes) + " bytes asked for, but shape and strides need " + std::to_string(needed));
  }
  if (spec.bytes == 0) whole.bytes = needed;
  return whole;
}

shm::CreateRecord to_wire(const TensorSpec& spec) {
  shm::CreateRecord record{};
  record.bytes = spec.bytes;
  record.dtype = static_cast<std::uint32_t>(spec.dtype);
  record.rank = static_cast<std::uint32_t>(spec.shape.size());
  std::ranges::copy(spec.shape, record.shape.begin());
  std::ranges::copy(spec.strides, record.strides.begin());
  std::ranges::copy(spec.name, record.name.begin());
  return record;
}

TensorSpec from_wire(const shm::CreateRecord& record) {
  const std::size_t rank = std::min<std::size_t>(record.rank, record.shape.size());
  TensorSpec spec;
  spec.name.assign(record.name.begin(), std::ranges::find(record.name, '\0'));
  spec.dtype = static_cast<DType>(record.dtype);
  spec.shape.assign(record.shape.begin(), record.shape.begin() + static_cast<std::ptrdiff_t>(rank));
  spec.strides.assign(record.strides.begin(), record.strides.begin() + static_cast<std::ptrdiff_t>(rank));
  spec.bytes = record.bytes;
  return spec;
}

}  // namespace client
}  // namespace terrace
