// SPDX-License-Identifier: Apache-2.0
// Shows that every field from outside is checked before it becomes a request, that the error names the field, and that
// an error's details read as a google.rpc.ErrorInfo.
#include "front/grpc/convert.h"

#include <gmock/gmock.h>

#include "shm/layout.h"
#include "terrace/v1/error.pb.h"

namespace terrace::front {
namespace {

using testing::HasSubstr;

template <typename T>
void expect_invalid(const Result<T>& result, const std::string& part) {
  ASSERT_FALSE(result.has_value()) << part;
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(result.error().message, HasSubstr(part));
}

v1::TensorSpec spec_of(const std::string& name, v1::DataType dtype, std::vector<std::int64_t> shape,
                       std::uint64_t bytes = 0) {
  v1::TensorSpec spec;
  spec.set_name(name);
  spec.set_dtype(dtype);
  for (const auto extent : shape) spec.add_shape(extent);
  spec.set_bytes(bytes);
  return spec;
}

TEST(GrpcConvert, TakesBytesFromDtypeAndShape) {
  const auto spec = to_spec(spec_of("w", v1::DATA_TYPE_FLOAT32, {3, 5}), 0);
  ASSERT_TRUE(spec.has_value());
  EXPECT_EQ(spec->bytes, 60u);
  EXPECT_EQ(spec->dtype, DType::kFloat32);
}

TEST(GrpcConvert, CountsStridedTensorsToTheirLastElement) {
  auto strided = spec_of("w", v1::DATA_TYPE_INT16, {3, 2});
  strided.add_strides(10);
  strided.add_strides(1);
  EXPECT_EQ(to_spec(strided, 0)->bytes, 44u);  // elements 0 to 21
}

TEST(GrpcConvert, RefusesBadSpecsByField) {
  expect_invalid(to_spec(spec_of("", v1::DATA_TYPE_UINT8, {}, 1), 3), "tensors[3].name has 0 bytes");
  expect_invalid(to_spec(spec_of(std::string(176, 'x'), v1::DATA_TYPE_UINT8, {}, 1), 0), "name has 176 bytes");
  expect_invalid(to_spec(spec_of(std::string("a\0b", 3), v1::DATA_TYPE_UINT8, {}, 1), 0), "NUL");
  expect_invalid(to_spec(spec_of("a", static_cast<v1::DataType>(99), {}, 1), 0), "dtype is 99");
  expect_invalid(to_spec(spec_of("a", v1::DATA_TYPE_UINT8, {-1}), 0), "shape holds -1");
  expect_invalid(to_spec(spec_of("a", v1::DATA_TYPE_UINT8, {4, 0}), 0), "no bytes");
  expect_invalid(to_spec(spec_of("a", v1::DATA_TYPE_UINT8, {}), 0), "no bytes");
  expect_invalid(to_spec(spec_of("a", v1::DATA_TYPE_FLOAT64, {4}, 31), 0), "need 32");
  expect_invalid(to_spec(spec_of("a", v1::DATA_TYPE_FLOAT64, {INT64_MAX, INT64_MAX}), 0), "2^64");
  expect_invalid(to_spec(spec_of("a", v1::DATA_TYPE_UINT8, {1, 1, 1, 1, 1, 1, 1, 1, 1}), 0), "9 dimensions");
  auto uneven = spec_of("a", v1::DATA_TYPE_UINT8, {2, 2});
  uneven.add_strides(2);
  expect_invalid(to_spec(uneven, 0), "strides has 1 entries");
}

TEST(GrpcConvert, RefusesEmptyAndRepeatedHandles) {
  google::protobuf::RepeatedField<std::uint64_t> handles;
  expect_invalid(to_handles(handles), "tensors is empty");
  handles.Add(5);
  handles.Add(6);
  EXPECT_EQ(to_handles(handles)->size(), 2u);
  handles.Add(5);
  expect_invalid(to_handles(handles), "handle 5 twice");
}

TEST(GrpcConvert, KnowsWhichPlaceGoesWhere) {
  v1::Place place;
  expect_invalid(to_place(false, place, PlaceUse::kLease), "place is missing");
  expect_invalid(to_place(true, place, PlaceUse::kLease), "place.kind is 0");
  place.set_kind(v1::PLACE_KIND_BLOCK);
  expect_invalid(to_place(true, place, PlaceUse::kLease), "PLACE_KIND_DEVICE");
  EXPECT_EQ(*to_place(true, place, PlaceUse::kSwapOut), shm::kPlaceBlock);
  place.set_device(1);
  expect_invalid(to_place(true, place, PlaceUse::kSwapOut), "place.device is 1");
  place.set_kind(v1::PLACE_KIND_DEVICE);
  EXPECT_EQ(*to_place(true, place, PlaceUse::kLease), shm::kPlaceDevice0 + 1);
  place.set_device(8);
  EXPECT_EQ(to_place(true, place, PlaceUse::kLease).error().code, ErrorCode::kNotFound);
}

TEST(GrpcConvert, BindsASessionToItsPeer) {
  v1::OpenSessionRequest request;
  request.set_label("rank 0");
  auto* guarantee = request.add_guarantees();
  guarantee->mutable_place()->set_kind(v1::PLACE_KIND_HOST);
  guarantee->set_bytes(100);
  const auto open = to_open(request, {.tenant = {1, 1000}, .pid = 42});
  ASSERT_TRUE(open.has_value());
  EXPECT_EQ(open->pid, 42);
  EXPECT_EQ(open->tenant.uid, 1000u);
  EXPECT_EQ(open->local_world_size, 1u);
  EXPECT_FALSE(open->maps_segments);
  *request.add_guarantees() = request.guarantees(0);
  expect_invalid(to_open(request, {}), "guarantees[1].place is named twice");
  request.clear_guarantees();
  request.set_label(std::string(64, 'x'));
  expect_invalid(to_open(request, {}), "label has 64 bytes");
}

TEST(GrpcConvert, TokensHaveSixteenBytes) {
  EXPECT_TRUE(to_token(std::string(16, 'x')).has_value());
  expect_invalid(to_token("short"), "token has 5 bytes");
}

TEST(GrpcConvert, DetailsAreAnErrorInfo) {
  const grpc::Status status = to_grpc({ErrorCode::kDataLoss, "chunk 3", 5});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  v1::StatusDetails details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(details.code(), 15);
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  v1::ErrorInfo info;
  ASSERT_TRUE(info.ParseFromString(details.details(0).value()));
  EXPECT_EQ(info.reason(), "DATA_LOSS");
  EXPECT_EQ(info.domain(), "terrace");
  EXPECT_EQ(info.metadata().at("errno"), "5");
}

}  // namespace
}  // namespace terrace::front
