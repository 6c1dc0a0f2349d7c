// SPDX-License-Identifier: Apache-2.0
#include "front/sessions/data_connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

namespace terrace::front {
namespace {

constexpr std::size_t kDescriptorsMax = 4;

// Closes every descriptor that came along: no message of ours to the daemon has any.
void close_descriptors(msghdr& message) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(control) + i * sizeof descriptor, sizeof descriptor);
      ::close(descriptor);
    }
  }
}

template <typename Message>
Result<std::optional<DataConnection::Incoming>> decode(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(Message))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a message of {} bytes where {} belong", bytes.size(), sizeof(Message)));
  Message message;
  std::memcpy(&message, bytes.data(), sizeof message);
  return DataConnection::Incoming(message);
}

Result<std::optional<DataConnection::Incoming>> decode_any(std::span<const std::byte> bytes) {
  shm::MessageHeader header;
  if (bytes.size() < sizeof header) return fail(ErrorCode::kInvalidArgument, "a message too short to be one of ours");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != shm::kMessageMagic)
    return fail(ErrorCode::kInvalidArgument,
                "a message that does not begin with our magic number; use Terrace's client library");
  if (header.version != shm::kProtocolVersion)
    return fail(
        ErrorCode::kFailedPrecondition,
        fmt::format(
            "the client speaks protocol version {}, this daemon version {}; install the same release on both sides",
            header.version, shm::kProtocolVersion));
  switch (header.type) {
    case shm::MessageType::kHello:
      return decode<shm::Hello>(bytes);
    case shm::MessageType::kRetired:
      return decode<shm::SegmentMessage>(bytes);
    case shm::MessageType::kResume:
      return decode<shm::Resume>(bytes);
    case shm::MessageType::kBye:
      return decode<shm::Bye>(bytes);
    default:
      break;
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("message type {} is not one that a client sends", static_cast<std::uint32_t>(header.type)));
}

}  // namespace

Result<std::optional<DataConnection::Incoming>> DataConnection::receive() {
  alignas(8) std::array<std::byte, 1024> bytes;
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * 253)> control;
  iovec vector{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::nullopt;
    return fail(ErrorCode::kUnavailable, "the connection broke", errno);
  }
  close_descriptors(message);
  if (got == 0) return fail(ErrorCode::kUnavailable, "the peer closed the connection");
  if ((message.msg_flags & MSG_TRUNC) != 0)
    return fail(ErrorCode::kInvalidArgument, "a message longer than any of ours");
  return decode_any(std::span(bytes).first(static_cast<std::size_t>(got)));
}

Result<void> DataConnection::queue(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  if (queue_.size() >= kQueueMax)
    return fail(ErrorCode::kResourceExhausted, fmt::format("the client left {} messages unread", kQueueMax));
  Outgoing outgoing{{bytes.begin(), bytes.end()}, {}};
  for (const int descriptor : descriptors) {
    Fd copy(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (!copy) return fail(ErrorCode::kResourceExhausted, "no descriptor is left to pass a segment on", errno);
    outgoing.descriptors.push_back(std::move(copy));
  }
  queue_.push_back(std::move(outgoing));
  return flush();
}

bool DataConnection::take_back_seam(std::uint32_t place, std::uint64_t offset) {
  const auto part_of_it = [&](const Outgoing& outgoing) -> std::optional<shm::StitchMessage> {
    shm::StitchMessage message;
    if (outgoing.bytes.size() != sizeof message) return std::nullopt;
    std::memcpy(&message, outgoing.bytes.data(), sizeof message);
    const bool is =
        message.header.type == shm::MessageType::kStitch && message.place == place && message.offset == offset;
    return is ? std::optional(message) : std::nullopt;
  };
  const auto is_first = [&](const Outgoing& outgoing) {
    const auto part = part_of_it(outgoing);
    return part && part->at == 0;
  };
  if (std::ranges::none_of(queue_, is_first)) return false;
  std::erase_if(queue_, [&](const Outgoing& outgoing) { return part_of_it(outgoing).has_value(); });
  return true;
}

Result<void> DataConnection::flush() {
  while (!queue_.empty()) {
    Outgoing& next = queue_.front();
    iovec vector{next.bytes.data(), next.bytes.size()};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kDescriptorsMax)> control{};
    if (!next.descriptors.empty()) {
      const std::size_t count = std::min(next.descriptors.size(), kDescriptorsMax);
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * count);
      for (std::size_t i = 0; i < count; ++i) {
        const int descriptor = next.descriptors[i].get();
        std::memcpy(CMSG_DATA(header) + i * sizeof descriptor, &descriptor, sizeof descriptor);
      }
    }
    if (sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS) return {};
      return fail(ErrorCode::kUnavailable, "the peer is gone", errno);
    }
    queue_.pop_front();
  }
  return {};
}

shm::Refused refusal(const Error& error) {
  shm::Refused refused;
  refused.code = static_cast<std::uint32_t>(error.code);
  const std::size_t length = std::min(error.message.size(), refused.message.size() - 1);
  std::memcpy(refused.message.data(), error.message.data(), length);
  return refused;
}

}  // namespace terrace::front
