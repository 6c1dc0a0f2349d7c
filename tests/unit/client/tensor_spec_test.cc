// SPDX-License-Identifier: Apache-2.0
// Shows how a tensor's description is made whole, and what no tensor can be.
#include <gtest/gtest.h>

#include <limits>

#include "tensor_record.h"

namespace terrace::client {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TEST(TensorSpec, IsMadeWhole) {
  const auto matrix = complete({.name = "m", .dtype = DType::kFloat32, .shape = {3, 5}});
  ASSERT_TRUE(matrix.has_value());
  EXPECT_EQ(matrix->bytes, 60u);
  EXPECT_EQ(matrix->strides, (std::vector<std::int64_t>{5, 1}));
  const auto transposed = complete({.name = "t", .dtype = DType::kInt16, .shape = {3, 5}, .strides = {1, 3}});
  EXPECT_EQ(transposed->bytes, 30u);
  const auto padded = complete({.name = "p", .dtype = DType::kInt16, .shape = {3, 5}, .strides = {8, 1}, .bytes = 64});
  EXPECT_EQ(padded->bytes, 64u);
  const auto flat = complete({.name = "f", .dtype = DType::kFloat64, .bytes = 80});
  EXPECT_EQ(flat->shape, std::vector<std::int64_t>{10});
  const auto scalar = complete({.name = "s", .dtype = DType::kInt64});
  EXPECT_EQ(scalar->bytes, 8u);
  EXPECT_TRUE(scalar->shape.empty());
  const shm::CreateRecord record = to_wire(*matrix);
  EXPECT_EQ(record.rank, 2u);
  EXPECT_EQ(record.shape[1], 5);
  EXPECT_EQ(record.bytes, 60u);
  EXPECT_STREQ(record.name.data(), "m");
}

TEST(TensorSpec, NamesWhatNoTensorCanBe) {
  const std::vector<TensorSpec> wrong = {
      {.name = "", .bytes = 1},
      {.name = std::string(176, 'x'), .bytes = 1},
      {.name = std::string("a\0b", 3), .bytes = 1},
      {.name = "zero", .shape = {0}},
      {.name = "zero", .shape = {4, 0}, .strides = {1, 1}},
      {.name = "odd", .dtype = DType::kFloat32, .bytes = 7},
      {.name = "dtype", .dtype = static_cast<DType>(99), .bytes = 8},
      {.name = "rank", .shape = std::vector<std::int64_t>(9, 1)},
      {.name = "negative", .shape = {-1}},
      {.name = "backwards", .shape = {4}, .strides = {-1}},
      {.name = "strides", .shape = {4, 4}, .strides = {1}},
      {.name = "small", .dtype = DType::kFloat32, .shape = {4}, .bytes = 12},
      {.name = "overflow", .shape = {kHuge, 3}},
      {.name = "overflow", .dtype = DType::kFloat64, .shape = {kHuge}},
      {.name = "overflow", .shape = {kHuge, kHuge}, .strides = {kHuge, 1}},
  };
  for (const TensorSpec& spec : wrong) {
    const auto completed = complete(spec);
    ASSERT_FALSE(completed.has_value()) << spec.name;
    EXPECT_EQ(completed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(completed.error().message.find("tensor \""), std::string::npos);
  }
}

}  // namespace
}  // namespace terrace::client
