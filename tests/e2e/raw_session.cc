// SPDX-License-Identifier: Apache-2.0
#include "e2e/raw_session.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>

namespace terrace::e2e {

using namespace std::chrono_literals;

RawSession::RawSession(const std::string& data_socket) {
  const auto deadline = client::deadline_after(60s);
  socket_ = client::DataSocket::connect(data_socket, deadline).value();
  shm::Hello hello;
  hello.header.bytes = sizeof hello;
  socket_.send(hello.header).value();
  client::Message answer = socket_.receive(deadline).value();
  if (answer.header.type != shm::MessageType::kWelcome) throw std::runtime_error("not welcome");
  const auto welcome = answer.as<shm::Welcome>();
  bytes_ = welcome.region_bytes;
  session_ = welcome.session;
  token_ = welcome.token;
  region_memory_ = std::move(answer.descriptors[0]);
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, region_memory_.get(), 0);
  if (mapped == MAP_FAILED) throw std::runtime_error("the region cannot be mapped");
  base_ = static_cast<std::byte*>(mapped);
  region_ = shm::open_region(base_, bytes_).value();
  doorbell_ = std::move(answer.descriptors[1]);
  calls_.emplace(region_, doorbell_.get(), [](std::uint64_t, shm::Mode) {});
}

RawSession::~RawSession() { ::munmap(base_, bytes_); }

Result<std::vector<std::uint64_t>> RawSession::ask(const client::Question& question) {
  const Result<std::shared_ptr<client::Call>> call = calls_->submit(question, client::deadline_after(60s));
  if (!call) return std::unexpected(call.error());
  EXPECT_TRUE(calls_->wait(*call, client::deadline_after(60s))) << "no answer";
  if ((*call)->error) return std::unexpected(*(*call)->error);
  return (*call)->handles;
}

Result<std::vector<std::uint64_t>> RawSession::create(const shm::CreateRecord& record) {
  return ask({.operation = shm::Operation::kCreate, .timeout = 10s, .records = {&record, 1}});
}

void RawSession::ring() const { EXPECT_EQ(::write(doorbell_.get(), "\1\0\0\0\0\0\0\0", 8), 8); }

bool RawSession::ended(std::chrono::nanoseconds patience) const {
  const Result<client::Message> last = socket_.receive(client::deadline_after(patience));
  if (!last && last.error().code == ErrorCode::kDeadlineExceeded) return false;
  return !last.has_value() || last->header.type == shm::MessageType::kRefused;
}

Result<RawSession::Segment> RawSession::segment() const {
  Result<client::Message> message = socket_.receive(client::deadline_after(60s));
  if (!message) return std::unexpected(message.error());
  if (message->header.type != shm::MessageType::kSegment || message->descriptors.size() != 1)
    return fail(ErrorCode::kInternal, "another message than a segment");
  return Segment{message->as<shm::SegmentMessage>(), std::move(message->descriptors[0])};
}

shm::CreateRecord record_named(const char* name, std::uint64_t bytes) {
  shm::CreateRecord record{};
  record.bytes = bytes;
  record.dtype = static_cast<std::uint32_t>(DType::kUint8);
  record.rank = 1;
  record.shape[0] = static_cast<std::int64_t>(bytes);
  record.strides[0] = 1;
  std::strcpy(record.name.data(), name);
  return record;
}

}  // namespace terrace::e2e
