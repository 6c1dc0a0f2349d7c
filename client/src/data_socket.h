// SPDX-License-Identifier: Apache-2.0
// The library's end of the daemon's data socket: finding it, and messages with descriptors.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "descriptor.h"
#include "shm/message.h"
#include "terrace/error.h"

namespace terrace::client {

using Deadline = std::chrono::steady_clock::time_point;

// Now and `timeout`, which may be anything.
Deadline deadline_after(std::chrono::nanoseconds timeout);

// The path that ConnectOptions::socket describes.
std::string find_socket(const std::string& asked);

// One message as it came; its header is checked, and that it has the size of its type.
struct Message {
  shm::MessageHeader header;
  std::array<std::byte, sizeof(shm::Refused)> bytes{};  // the whole message
  std::vector<Descriptor> descriptors;

  // As what the header says that it is.
  template <typename T>
  T as() const {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(bytes));
    T value;
    std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof(T));
    return value;
  }
};

// What the daemon said in a refusal.
Error error_of(const shm::Refused& refused);

class DataSocket {
 public:
  DataSocket() = default;
  explicit DataSocket(Descriptor socket) : socket_(std::move(socket)) {}
  // kUnavailable, saying how to start a daemon, if none is there.
  static Result<DataSocket> connect(const std::string& path, Deadline deadline);
  // The same in two steps.
  static Result<DataSocket> unconnected();
  Result<void> connect_to(const std::string& path, Deadline deadline) const;

  // Sends one message; the size is that of its header. Thread-safe.
  Result<void> send(const shm::MessageHeader& message) const;
  // Waits until receive() has something to say: a message, or the daemon's end. False: not by the deadline.
  bool wait(Deadline deadline) const;
  // The next message. kUnavailable once the daemon has closed the socket, and all that it sent before was received;
  // kDeadlineExceeded, kFailedPrecondition for another version, kInternal for what is no message.
  Result<Message> receive(Deadline deadline) const;

  int get() const { return socket_.get(); }
  // Both ends see it closed from now on; the descriptor stays, for whoever may be using it.
  void shut_down() const;
  // The same after this last message. What the daemon sent meanwhile is dropped: were it left unread, the daemon would
  // be told of a reset, and not hear what was said last.
  void say_last(const shm::MessageHeader& message) const;
  void reset() { socket_.reset(); }

 private:
  Descriptor socket_;
};

}  // namespace terrace::client
