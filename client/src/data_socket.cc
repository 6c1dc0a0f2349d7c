// SPDX-License-Identifier: Apache-2.0
#include "data_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>
#include <utility>

namespace terrace::client {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kDescriptorsMax = 4;
// How long the daemon may leave its socket unread.
constexpr std::chrono::seconds kSendTimeout{10};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Error cannot_connect(const std::string& path, int error) {
  const std::string what = "cannot reach terraced at " + path + ": " + std::strerror(error);
  switch (error) {
    case ENOENT:
    case ECONNREFUSED:
    case ENOTDIR:
      return {ErrorCode::kUnavailable,
              "no terraced at " + path + " (" + std::strerror(error) +
                  "): start one with `terraced`, or in Python with `terrace.serve()`; TERRACE_SOCKET names the "
                  "data socket of one that runs",
              error};
    case EACCES:
    case EPERM:
      return {ErrorCode::kPermissionDenied, what + ": ask the operator for access to that socket", error};
    case EPROTOTYPE:
      return {ErrorCode::kInvalidArgument, what + ": this is not a data socket; give the path of data.sock", error};
    case EAGAIN:
    case EINPROGRESS:
      return {ErrorCode::kDeadlineExceeded, what + ": it did not accept the connection in time", error};
    default:
      return {ErrorCode::kUnavailable, what, error};
  }
}

// Bytes that a message of this type has; 0: the library is never sent one.
std::size_t size_of(shm::MessageType type) {
  switch (type) {
    case shm::MessageType::kWelcome:
      return sizeof(shm::Welcome);
    case shm::MessageType::kRefused:
      return sizeof(shm::Refused);
    case shm::MessageType::kSegment:
    case shm::MessageType::kRetire:
    case shm::MessageType::kUnstitch:
      return sizeof(shm::SegmentMessage);
    case shm::MessageType::kStitch:
      return sizeof(shm::StitchMessage);
    case shm::MessageType::kResumed:
      return sizeof(shm::Resumed);
    case shm::MessageType::kHello:
    case shm::MessageType::kRetired:
    case shm::MessageType::kBye:
    case shm::MessageType::kResume:
      return 0;
  }
  return 0;
}

Result<void> check(const Message& message, std::size_t received) {
  const shm::MessageHeader& header = message.header;
  if (received < sizeof(shm::MessageHeader) || header.magic != shm::kMessageMagic) {
    return fail(ErrorCode::kInternal, "what answers on the data socket does not speak Terrace's protocol: " +
                                          std::to_string(received) + " bytes of something else");
  }
  if (header.version != shm::kProtocolVersion) {
    return fail(ErrorCode::kFailedPrecondition, "terraced speaks version " + std::to_string(header.version) +
                                                    " of the data socket's protocol, this library version " +
                                                    std::to_string(shm::kProtocolVersion) +
                                                    ": install the same release of both");
  }
  if (size_of(header.type) != received || header.bytes != received) {
    return fail(ErrorCode::kInternal, "terraced sent a message of type " +
                                          std::to_string(static_cast<std::uint32_t>(header.type)) + " and " +
                                          std::to_string(received) + " bytes, which there is none of");
  }
  return {};
}

void limit_sends(int socket, std::chrono::nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timeval limit{.tv_sec = static_cast<time_t>(seconds.count()),
                      .tv_usec = std::chrono::duration_cast<std::chrono::microseconds>(timeout - seconds).count()};
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

void take_descriptors(msghdr& packet, std::vector<Descriptor>& out) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&packet); control != nullptr; control = CMSG_NXTHDR(&packet, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      out.emplace_back(fd);
    }
  }
}

}  // namespace

Deadline deadline_after(std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 365);
  return std::chrono::steady_clock::now() + std::clamp(timeout, std::chrono::nanoseconds::zero(), kLongest);
}

std::string find_socket(const std::string& asked) {
  if (!asked.empty()) return asked;
  if (std::string named = environment("TERRACE_SOCKET"); !named.empty()) return named;
  if (const std::string runtime = environment("XDG_RUNTIME_DIR"); !runtime.empty()) {
    std::string own = runtime + "/terrace/data.sock";
    if (::access(own.c_str(), F_OK) == 0) return own;
  }
  return "/run/terrace/data.sock";
}

Error error_of(const shm::Refused& refused) {
  const auto code = static_cast<ErrorCode>(refused.code);
  const std::size_t length = ::strnlen(refused.message.data(), refused.message.size());
  return {name(code) == name(ErrorCode::kInternal) ? ErrorCode::kInternal : code,
          std::string(refused.message.data(), length), 0};
}

void DataSocket::shut_down() const { ::shutdown(socket_.get(), SHUT_RDWR); }

void DataSocket::say_last(const shm::MessageHeader& message) const {
  static_cast<void>(send(message));  // gone or not, this is the end
  shut_down();
  std::byte dropped{};
  ssize_t received = 0;
  bool reset = false;
  do {
    received = ::recv(socket_.get(), &dropped, sizeof dropped, MSG_DONTWAIT);
  } while (received > 0 || (received < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true)))));
}

Result<DataSocket> DataSocket::connect(const std::string& path, Deadline deadline) {
  Result<DataSocket> socket = unconnected();
  if (!socket) return socket;
  if (Result<void> connected = socket->connect_to(path, deadline); !connected) {
    return std::unexpected(connected.error());
  }
  return socket;
}

Result<DataSocket> DataSocket::unconnected() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return fail(ErrorCode::kResourceExhausted, std::string("no socket: ") + std::strerror(errno), errno);
  return DataSocket(std::move(socket));
}

Result<void> DataSocket::connect_to(const std::string& path, Deadline deadline) const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return fail(ErrorCode::kInvalidArgument, "the socket's path has " + std::to_string(path.size()) +
                                                 " bytes, a socket's can have " +
                                                 std::to_string(sizeof(address.sun_path) - 1) + ": " + path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  // connect(2) waits no longer than for a send.
  limit_sends(socket_.get(), std::max<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now(), 1ms));
  while (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno != EINTR) return std::unexpected(cannot_connect(path, errno));
  }
  limit_sends(socket_.get(), kSendTimeout);
  return {};
}

Result<void> DataSocket::send(const shm::MessageHeader& message) const {
  ssize_t sent = 0;
  do {
    sent = ::send(socket_.get(), &message, message.bytes, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(message.bytes)) return {};
  const int error = errno;
  return fail(ErrorCode::kUnavailable, std::string("cannot send to terraced: ") + std::strerror(error), error);
}

bool DataSocket::wait(Deadline deadline) const {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000)));
    if (count > 0) return true;
    if (left.count() <= 0) return false;
  }
}

Result<Message> DataSocket::receive(Deadline deadline) const {
  if (!wait(deadline)) return fail(ErrorCode::kDeadlineExceeded, "terraced did not answer in time");
  Message message;
  std::array<std::byte, 1024> bytes{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsMax)> control{};
  iovec piece{.iov_base = bytes.data(), .iov_len = bytes.size()};
  msghdr packet{};
  packet.msg_iov = &piece;
  packet.msg_iovlen = 1;
  packet.msg_control = control.data();
  packet.msg_controllen = control.size();
  ssize_t received = 0;
  bool reset = false;  // told once, where the daemon closed without reading all; what it sent before can still be read
  do {
    received = ::recvmsg(socket_.get(), &packet, MSG_CMSG_CLOEXEC);
  } while (received < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true))));
  if (received <= 0) {
    const int error = received == 0 ? 0 : errno;
    return fail(ErrorCode::kUnavailable,
                "terraced closed the connection" + (error == 0 ? "" : std::string(": ") + std::strerror(error)), error);
  }
  take_descriptors(packet, message.descriptors);
  const auto size = static_cast<std::size_t>(received);
  std::ranges::copy(std::span(bytes).first(std::min(size, message.bytes.size())), message.bytes.begin());
  message.header = message.as<shm::MessageHeader>();
  if (Result<void> known = check(message, size); !known) return std::unexpected(known.error());
  return message;
}

}  // namespace terrace::client
