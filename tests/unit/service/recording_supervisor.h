// SPDX-License-Identifier: Apache-2.0
// A notification socket that keeps what it is sent, for tests of those who send.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "service/notify_socket.h"

namespace terrace::service {

// Sets NOTIFY_SOCKET and, unless it is 0, FDSTORE for as long as it is there.
class RecordingSupervisor {
 public:
  struct Message {
    std::string text;
    std::vector<Fd> descriptors;
  };

  explicit RecordingSupervisor(std::size_t capacity) {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    const std::string path = folder_ / "notify";
    sockaddr_un address{};
    const socklen_t length = notify_address(path, address);
    socket_ = Fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    setenv("NOTIFY_SOCKET", path.c_str(), 1);
    if (capacity > 0) setenv("FDSTORE", std::to_string(capacity).c_str(), 1);
  }
  RecordingSupervisor(const RecordingSupervisor&) = delete;
  RecordingSupervisor& operator=(const RecordingSupervisor&) = delete;
  ~RecordingSupervisor() {
    for (const char* name : {"NOTIFY_SOCKET", "FDSTORE"}) unsetenv(name);
    std::filesystem::remove_all(folder_);
  }

  // The next message; none if there is none.
  std::optional<Message> receive() const {
    std::array<char, kMessageBytesMax> bytes{};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kMessageDescriptorsMax * sizeof(int))> control{};
    iovec text{bytes.data(), bytes.size()};
    msghdr header{};
    header.msg_iov = &text;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t count = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
    if (count < 0) return std::nullopt;
    Message message{std::string(bytes.data(), static_cast<std::size_t>(count)), {}};
    const cmsghdr* rights = CMSG_FIRSTHDR(&header);
    if (rights == nullptr) return message;
    std::vector<int> numbers((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(numbers.data(), CMSG_DATA(rights), numbers.size() * sizeof(int));
    for (const int number : numbers) message.descriptors.emplace_back(number);
    return message;
  }
  // It ends: nobody reads any more.
  void end() { socket_.reset(); }

 private:
  std::filesystem::path folder_;
  Fd socket_;
};

}  // namespace terrace::service
