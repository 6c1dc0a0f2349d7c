// SPDX-License-Identifier: Apache-2.0
#include "front/grpc/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "base/text.h"
#include "engine/catalog/records.h"
#include "shm/layout.h"
#include "terrace/v1/error.pb.h"

namespace terrace::front {
namespace {

constexpr std::size_t kLabelBytesMax = 63;
constexpr int kDimensionsMax = 8;
constexpr std::uint32_t kDevicesMax = shm::kPlacesMax - 1;

std::unexpected<Error> invalid(std::string message) { return fail(ErrorCode::kInvalidArgument, std::move(message)); }

// a * b + c, or nothing where that does not fit.
std::optional<std::uint64_t> multiply_add(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t product = 0;
  std::uint64_t sum = 0;
  if (__builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(product, c, &sum)) return std::nullopt;
  return sum;
}

// Bytes from the first to past the last element that `spec` can name; nothing on overflow.
std::optional<std::uint64_t> span_bytes(const engine::TensorSpec& spec) {
  std::optional<std::uint64_t> elements = 1;
  if (spec.strides.empty()) {
    for (const std::int64_t extent : spec.shape) {
      elements = multiply_add(*elements, static_cast<std::uint64_t>(extent), 0);
      if (!elements) return std::nullopt;
    }
  } else {
    for (std::size_t d = 0; d < spec.shape.size(); ++d) {
      if (spec.shape[d] == 0) return 0;
      elements = multiply_add(static_cast<std::uint64_t>(spec.shape[d]) - 1,
                              static_cast<std::uint64_t>(spec.strides[d]), *elements);
      if (!elements) return std::nullopt;
    }
  }
  return multiply_add(*elements, element_bytes(spec.dtype), 0);
}

Result<void> check_layout(const v1::TensorSpec& spec, const std::string& field) {
  if (spec.shape_size() > kDimensionsMax)
    return invalid(fmt::format("{}.shape has {} dimensions: at most {}", field, spec.shape_size(), kDimensionsMax));
  if (spec.strides_size() != 0 && spec.strides_size() != spec.shape_size())
    return invalid(fmt::format("{}.strides has {} entries: give one for each of the {} dimensions, or none", field,
                               spec.strides_size(), spec.shape_size()));
  for (const std::int64_t extent : spec.shape())
    if (extent < 0) return invalid(fmt::format("{}.shape holds {}: dimensions are 0 or more elements", field, extent));
  for (const std::int64_t stride : spec.strides())
    if (stride < 0) return invalid(fmt::format("{}.strides holds {}: strides are 0 or more elements", field, stride));
  return {};
}

}  // namespace

grpc::Status to_grpc(const Error& error) {
  v1::ErrorInfo info;
  info.set_reason(std::string(name(error.code)));
  info.set_domain("terrace");
  if (error.system_error != 0) (*info.mutable_metadata())["errno"] = std::to_string(error.system_error);
  v1::StatusDetails details;
  details.set_code(static_cast<std::int32_t>(error.code));
  details.set_message(error.message);
  auto* any = details.add_details();
  any->set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
  any->set_value(info.SerializeAsString());
  return {static_cast<grpc::StatusCode>(error.code), error.message, details.SerializeAsString()};
}

Result<Token> to_token(std::string_view bytes) {
  Token token;
  if (bytes.size() != token.size())
    return invalid(
        fmt::format("token has {} bytes: give the {} bytes that OpenSession returned", bytes.size(), token.size()));
  std::memcpy(token.data(), bytes.data(), token.size());
  return token;
}

Result<std::uint32_t> to_place(bool present, const v1::Place& place, PlaceUse use, std::string_view field) {
  const std::string_view right = use == PlaceUse::kLease ? "PLACE_KIND_HOST or PLACE_KIND_DEVICE"  //
                                                         : "PLACE_KIND_HOST or PLACE_KIND_BLOCK";
  if (!present) return invalid(fmt::format("{} is missing: give {}", field, right));
  if (place.kind() != v1::PLACE_KIND_DEVICE && place.device() != 0)
    return invalid(fmt::format("{}.device is {}: it goes with PLACE_KIND_DEVICE alone", field, place.device()));
  if (place.kind() == v1::PLACE_KIND_HOST) return shm::kPlaceHost;
  if (use == PlaceUse::kSwapOut && place.kind() == v1::PLACE_KIND_BLOCK) return shm::kPlaceBlock;
  if (use == PlaceUse::kLease && place.kind() == v1::PLACE_KIND_DEVICE) {
    if (place.device() >= kDevicesMax)
      return fail(ErrorCode::kNotFound,
                  fmt::format("{} is device:{}: there is no such place here", field, place.device()));
    return shm::kPlaceDevice0 + place.device();
  }
  return invalid(fmt::format("{}.kind is {}: give {}", field, static_cast<int>(place.kind()), right));
}

Result<shm::Mode> to_mode(v1::LeaseMode mode, std::string_view field) {
  switch (mode) {
    case v1::LEASE_MODE_READ:
      return shm::Mode::kRead;
    case v1::LEASE_MODE_WRITE:
      return shm::Mode::kWrite;
    case v1::LEASE_MODE_OVERWRITE:
      return shm::Mode::kOverwrite;
    default:
      return invalid(fmt::format("{} is {}: give LEASE_MODE_READ, LEASE_MODE_WRITE or LEASE_MODE_OVERWRITE", field,
                                 static_cast<int>(mode)));
  }
}

Result<engine::Modes> to_modes(v1::LeaseMode all, const google::protobuf::RepeatedField<int>& each, int tensors) {
  if (each.empty()) {
    const auto mode = to_mode(all);
    if (!mode) return std::unexpected(mode.error());
    return *mode;
  }
  if (all != v1::LEASE_MODE_UNSPECIFIED) return invalid("mode and modes are both given: give one of them");
  if (each.size() != tensors)
    return invalid(fmt::format("modes has {} entries for {} tensors: one for each", each.size(), tensors));
  std::vector<shm::Mode> modes;
  modes.reserve(static_cast<std::size_t>(tensors));
  for (int i = 0; i < tensors; ++i) {
    const auto mode = to_mode(static_cast<v1::LeaseMode>(each[i]), fmt::format("modes[{}]", i));
    if (!mode) return std::unexpected(mode.error());
    modes.push_back(*mode);
  }
  return modes;
}

Result<std::uint32_t> to_step_kind(v1::StepKind kind) {
  if (v1::StepKind_IsValid(kind)) return static_cast<std::uint32_t>(kind);
  return invalid(fmt::format("kind is {}: give one of StepKind", static_cast<int>(kind)));
}

Result<std::vector<Handle>> to_handles(const google::protobuf::RepeatedField<std::uint64_t>& packed) {
  if (packed.empty()) return invalid("tensors is empty: name at least one");
  if (static_cast<std::size_t>(packed.size()) > shm::kSetMax)
    return invalid(fmt::format("tensors has {} handles: at most {} in one call", packed.size(), shm::kSetMax));
  std::vector<std::uint64_t> sorted(packed.begin(), packed.end());
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) return invalid(fmt::format("tensors has handle {} twice: name each once", *twice));
  std::vector<Handle> handles;
  handles.reserve(static_cast<std::size_t>(packed.size()));
  for (const std::uint64_t one : packed) handles.push_back(Handle::unpack(one));
  return handles;
}

Result<engine::TensorSpec> to_spec(const v1::TensorSpec& spec, std::size_t index) {
  const std::string field = fmt::format("tensors[{}]", index);
  engine::TensorSpec out{.name = spec.name(), .bytes = spec.bytes(), .shape = {}, .strides = {}};
  if (out.name.empty() || out.name.size() > engine::kNameBytesMax)
    return invalid(fmt::format("{}.name has {} bytes: 1 to {}", field, out.name.size(), engine::kNameBytesMax));
  if (out.name.find('\0') != std::string::npos) return invalid(field + ".name holds a NUL byte: names are text");
  if (spec.dtype() != v1::DATA_TYPE_UNSPECIFIED) out.dtype = static_cast<DType>(spec.dtype());
  if (element_bytes(out.dtype) == 0)
    return invalid(fmt::format("{}.dtype is {}: give one of DataType", field, static_cast<int>(spec.dtype())));
  if (auto checked = check_layout(spec, field); !checked) return std::unexpected(checked.error());
  out.shape.assign(spec.shape().begin(), spec.shape().end());
  out.strides.assign(spec.strides().begin(), spec.strides().end());
  if (!out.shape.empty()) {
    const auto needed = span_bytes(out);
    if (!needed) return invalid(field + ".shape and strides come to more than 2^64 bytes");
    if (out.bytes == 0) out.bytes = *needed;
    if (out.bytes < *needed)
      return invalid(fmt::format("{}.bytes is {}: dtype, shape and strides need {}", field, out.bytes, *needed));
  }
  if (out.bytes == 0) return invalid(field + " has no bytes: give bytes, or a shape without a 0");
  return out;
}

Result<engine::OpenSession> to_open(const v1::OpenSessionRequest& request, const Peer& peer) {
  engine::OpenSession open;
  open.tenant = peer.tenant;
  open.pid = peer.pid;
  open.label = printable(request.label());
  open.local_world_size = std::max(1u, request.local_world_size());
  if (request.label().size() > kLabelBytesMax)
    return invalid(fmt::format("label has {} bytes: at most {}", request.label().size(), kLabelBytesMax));
  if (request.has_share()) {
    const v1::Share& share = request.share();
    if (share.use() != v1::Share::USE_READ && share.use() != v1::Share::USE_WRITE &&
        share.use() != v1::Share::USE_CREATE)
      return invalid("share.use is left out, or unknown: say USE_READ, USE_WRITE or USE_CREATE");
    open.share = engine::ShareAccess{.name = share.name(),
                                     .create = share.use() == v1::Share::USE_CREATE,
                                     .write = share.use() != v1::Share::USE_READ};
  }
  for (int i = 0; i < request.guarantees_size(); ++i) {
    const v1::Guarantee& guarantee = request.guarantees(i);
    const std::string field = fmt::format("guarantees[{}].place", i);
    const auto place = to_place(guarantee.has_place(), guarantee.place(), PlaceUse::kLease, field);
    if (!place) return std::unexpected(place.error());
    for (const engine::Guarantee& earlier : open.guarantees)
      if (earlier.place == *place) return invalid(field + " is named twice: give one guarantee per place");
    open.guarantees.push_back({.place = *place, .bytes = guarantee.bytes()});
  }
  return open;
}

void from_place(std::uint32_t place, v1::Place& out) {
  if (place == shm::kPlaceHost) {
    out.set_kind(v1::PLACE_KIND_HOST);
  } else if (place == shm::kPlaceBlock) {
    out.set_kind(v1::PLACE_KIND_BLOCK);
  } else if (place == shm::kPlaceNowhere) {
    out.set_kind(v1::PLACE_KIND_NOWHERE);
  } else {
    out.set_kind(v1::PLACE_KIND_DEVICE);
    out.set_device(place - shm::kPlaceDevice0);
  }
}

void from_placement(const engine::Placement& placement, v1::Placement& out) {
  from_place(placement.place, *out.mutable_place());
  out.set_offset_bytes(placement.offset);
  out.set_bytes(placement.bytes);
}

void from_info(const engine::TensorInfo& info, v1::TensorInfo& out) {
  out.set_tensor(info.handle.packed());
  v1::TensorSpec& spec = *out.mutable_spec();
  spec.set_name(info.spec.name);
  spec.set_dtype(static_cast<v1::DataType>(info.spec.dtype));
  spec.set_bytes(info.spec.bytes);
  for (const std::int64_t extent : info.spec.shape) spec.add_shape(extent);
  for (const std::int64_t stride : info.spec.strides) spec.add_strides(stride);
  from_placement(info.placement, *out.mutable_placement());
  out.set_dirty(info.dirty);
  out.set_pinned(info.pinned);
  out.set_readers(info.readers);
  out.set_writers(info.writers);
}

}  // namespace terrace::front
