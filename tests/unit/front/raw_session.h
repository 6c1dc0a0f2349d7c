// SPDX-License-Identifier: Apache-2.0
// A trainer that speaks the data socket by itself, past all that the library checks: any packet, any descriptors, and
// the session's region to write into.
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/fd.h"
#include "base/mapping.h"
#include "shm/message.h"
#include "shm/region.h"
#include "unit/front/send_packet.h"

namespace terrace::front {

class RawSession {
 public:
  // Connected, and silent.
  explicit RawSession(const std::string& path) {
    socket_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    TERRACE_CHECK(path.size() < sizeof address.sun_path);
    std::memcpy(address.sun_path, path.data(), path.size());
    TERRACE_CHECK(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }

  // One packet. False: the daemon has closed the connection.
  bool send_bytes(std::span<const std::byte> bytes, std::span<const int> descriptors = {}) const {
    return send_packet(socket_.get(), bytes, descriptors);
  }
  template <typename Message>
  bool send(Message message, std::span<const int> descriptors = {}) const {
    message.header.bytes = sizeof message;
    return send_bytes(std::as_bytes(std::span(&message, 1)), descriptors);
  }

  struct Packet {
    shm::MessageHeader header;
    std::vector<std::byte> bytes;
    std::vector<Fd> descriptors;
    template <typename Message>
    Message as() const {
      Message message;
      TERRACE_CHECK(bytes.size() == sizeof message);
      std::memcpy(static_cast<void*>(&message), bytes.data(), sizeof message);
      return message;
    }
  };
  // The next packet; none: the daemon has closed the connection. Waits a minute at most.
  std::optional<Packet> receive() const {
    pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    TERRACE_CHECK(::poll(&ready, 1, 60'000) == 1);
    Packet packet;
    packet.bytes.resize(1024);
    iovec vector{packet.bytes.data(), packet.bytes.size()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * 4)> control{};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got < static_cast<ssize_t>(sizeof packet.header)) return std::nullopt;
    packet.bytes.resize(static_cast<std::size_t>(got));
    std::memcpy(&packet.header, packet.bytes.data(), sizeof packet.header);
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr; each = CMSG_NXTHDR(&message, each)) {
      const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(each) + i * sizeof descriptor, sizeof descriptor);
        packet.descriptors.emplace_back(descriptor);
      }
    }
    return packet;
  }
  // Whether there is a packet, or the end of them, to receive().
  bool has_packet() const {
    pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&ready, 1, 0) == 1;
  }

  // Greets; whether it was welcome. Then there is a region.
  bool greet(const shm::Hello& hello = {}) {
    if (!send(hello)) return false;
    std::optional<Packet> answer = receive();
    return answer && enter(std::move(*answer));
  }
  bool enter(Packet answer) {
    if (answer.header.type != shm::MessageType::kWelcome) return false;
    welcome_ = answer.as<shm::Welcome>();
    TERRACE_CHECK(answer.descriptors.size() == 2);
    auto memory = AddressRange::map(answer.descriptors[0].get(), welcome_.region_bytes, PROT_READ | PROT_WRITE);
    TERRACE_CHECK(memory.has_value());
    memory_ = std::move(*memory);
    region_ = *shm::open_region(memory_.data(), memory_.size());
    doorbell_ = std::move(answer.descriptors[1]);
    return true;
  }
  const shm::Welcome& welcome() const { return welcome_; }
  const shm::RegionView& region() const { return region_; }
  void ring() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(doorbell_.get(), &one, sizeof one);
  }
  // Takes what comes until the daemon closes the connection; what it refused with, if it did.
  std::optional<shm::Refused> last_words() const {
    std::optional<shm::Refused> words;
    while (const std::optional<Packet> packet = receive())
      if (packet->header.type == shm::MessageType::kRefused) words = packet->as<shm::Refused>();
    return words;
  }

 private:
  Fd socket_;
  AddressRange memory_;
  shm::RegionView region_;
  Fd doorbell_;
  shm::Welcome welcome_;
};

}  // namespace terrace::front
