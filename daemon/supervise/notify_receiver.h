// SPDX-License-Identifier: Apache-2.0
// The supervisor's end of the notification socket: datagrams become checked values, and garbage becomes an error.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "terrace/error.h"

namespace terrace::supervise {

// What one message says. All else that sd_notify(3) knows is allowed and means nothing here.
struct Notification {
  enum class Store { kNothing, kAdd, kRemove };

  bool ready = false;     // READY=1
  bool stopping = false;  // STOPPING=1
  bool watchdog = false;  // WATCHDOG=1
  bool barrier = false;   // BARRIER=1: its descriptor is closed when this value goes
  Store store = Store::kNothing;
  std::string name;             // FDNAME: of what is added or removed; valid
  std::vector<Fd> descriptors;  // one for kAdd and for a barrier, else none
};

// kInvalidArgument says what is not as the protocol has it. `descriptors` came with `text`.
Result<Notification> parse_notification(std::string_view text, std::vector<Fd> descriptors);

// A datagram socket in a folder that only this uid may enter; both go with the object.
class NotifyReceiver {
 public:
  // The folder is made in $RUNTIME_DIRECTORY, else in $TMPDIR, else in /tmp. Errors name it.
  static Result<NotifyReceiver> create();
  NotifyReceiver(NotifyReceiver&&) noexcept = default;
  NotifyReceiver& operator=(NotifyReceiver&&) = delete;
  NotifyReceiver(const NotifyReceiver&) = delete;
  NotifyReceiver& operator=(const NotifyReceiver&) = delete;
  ~NotifyReceiver();

  // For NOTIFY_SOCKET.
  const std::string& path() const { return path_; }
  // Whether a socket is there: not where somebody cleaned the folder above it. Who is connected stays so.
  bool in_place() const;
  int descriptor() const { return socket_.get(); }

  // The next message, without blocking; none if there is none. kPermissionDenied: it is not from the process `sender`
  // (by the kernel's word; a number that is not reaped is not used again). kInvalidArgument: longer than
  // service::kMessageBytesMax, or as parse_notification(). What came with a message that is refused is closed.
  std::optional<Result<Notification>> receive(pid_t sender);

 private:
  NotifyReceiver(std::string folder, std::string path, Fd socket);

  std::string folder_;
  std::string path_;
  Fd socket_;
};

}  // namespace terrace::supervise
