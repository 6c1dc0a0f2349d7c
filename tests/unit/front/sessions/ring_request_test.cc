// SPDX-License-Identifier: Apache-2.0
// Shows that what a trainer writes into its ring becomes exactly the request it means, and that nonsense is refused.
#include "front/sessions/ring_request.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace terrace::front {
namespace {

std::vector<std::byte> bytes_of(const auto& records) {
  std::vector<std::byte> bytes(records.size() * sizeof records[0]);
  std::memcpy(bytes.data(), records.data(), bytes.size());
  return bytes;
}

TEST(RingRequest, ReadsACreate) {
  std::vector<shm::CreateRecord> records(1);
  records[0].bytes = 24;
  records[0].dtype = static_cast<std::uint32_t>(DType::kFloat32);
  records[0].rank = 2;
  records[0].shape = {2, 3};
  records[0].strides = {3, 1};
  std::strcpy(records[0].name.data(), "layer.0.weight");
  const shm::Submission submission{.operation = shm::Operation::kCreate, .count = 1};
  EXPECT_EQ(record_bytes(submission), sizeof(shm::CreateRecord));

  const auto body = to_request(submission, bytes_of(records));
  ASSERT_TRUE(body.has_value());
  const auto& spec = std::get<engine::CreateTensors>(*body).tensors.at(0);
  EXPECT_EQ(spec.name, "layer.0.weight");
  EXPECT_EQ(spec.bytes, 24u);
  EXPECT_EQ(spec.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(spec.strides, (std::vector<std::int64_t>{3, 1}));
}

TEST(RingRequest, ReadsASet) {
  // Two handles, and behind them a byte for each one's mode.
  const std::vector<std::uint64_t> content = {Handle{Slot{3}, 9}.packed(), Handle{Slot{4}, 1}.packed(), 0x00'02};
  const shm::Submission submission{.operation = shm::Operation::kAcquire, .place = 1, .count = 2};
  const std::size_t bytes = record_bytes(submission).value();
  EXPECT_EQ(bytes, 2 * sizeof(std::uint64_t) + 2);
  const std::vector<std::byte> block = bytes_of(content);
  const auto body = to_request(submission, std::span(block).first(bytes));
  ASSERT_TRUE(body.has_value());
  const auto& acquire = std::get<engine::Acquire>(*body);
  EXPECT_EQ(acquire.place, shm::kPlaceDevice0);
  EXPECT_EQ(acquire.modes[0], shm::Mode::kOverwrite);
  EXPECT_EQ(acquire.modes[1], shm::Mode::kRead);
  EXPECT_EQ(acquire.tensors, (std::vector<Handle>{{Slot{3}, 9}, {Slot{4}, 1}}));
}

TEST(RingRequest, RefusesByName) {
  EXPECT_EQ(record_bytes({.operation = shm::Operation::kCreate, .count = shm::kCreateMax + 1}).error().code,
            ErrorCode::kInvalidArgument);
  const std::vector<std::uint64_t> content = {Handle{Slot{3}, 9}.packed(), 3};
  const std::vector<std::byte> block = bytes_of(content);
  const auto modeless = to_request({.operation = shm::Operation::kAcquire, .count = 1}, std::span(block).first(9));
  EXPECT_EQ(modeless.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(modeless.error().message.find("mode 3"), std::string::npos);
  EXPECT_EQ(to_request({.operation = shm::Operation::kDeclareStep, .mode = 3}, {}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(to_request({.operation = shm::Operation{99}}, {}).error().code, ErrorCode::kUnimplemented);

  std::vector<shm::CreateRecord> records(1);
  std::memset(records[0].name.data(), 'x', records[0].name.size());
  const shm::Submission create{.operation = shm::Operation::kCreate, .count = 1};
  EXPECT_NE(to_request(create, bytes_of(records)).error().message.find("175"), std::string::npos);
  records[0].name = {'x', '\xC3', '('};
  EXPECT_NE(to_request(create, bytes_of(records)).error().message.find("UTF-8"), std::string::npos);
  records[0].name = {'x'};
  records[0].rank = 9;
  EXPECT_NE(to_request(create, bytes_of(records)).error().message.find("9 dimensions"), std::string::npos);
}

TEST(RingRequest, SurvivesRandomBytes) {
  constexpr std::uint32_t kSeed = 20261121;
  std::mt19937 random(kSeed);
  SCOPED_TRACE(kSeed);
  for (int round = 0; round < 20000; ++round) {
    shm::Submission submission;
    std::vector<std::uint32_t> noise(sizeof submission / 4);
    for (auto& word : noise) word = static_cast<std::uint32_t>(random());
    std::memcpy(static_cast<void*>(&submission), noise.data(), sizeof submission);
    if (round % 2 == 0) submission.operation = static_cast<shm::Operation>(random() % 12);
    if (round % 3 != 0) submission.count = static_cast<std::uint32_t>(random() % 4);
    const auto bytes = record_bytes(submission);
    if (!bytes) continue;
    std::vector<std::byte> block(*bytes);
    for (auto& byte : block) byte = static_cast<std::byte>(random());
    const auto body = to_request(submission, block);
    if (!body) {
      EXPECT_FALSE(body.error().message.empty());
    }
  }
}

}  // namespace
}  // namespace terrace::front
