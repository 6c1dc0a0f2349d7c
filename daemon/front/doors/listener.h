// SPDX-License-Identifier: Apache-2.0
// A listening Unix socket of the daemon: claimed exclusively, with tight modes, accepting with the peer's credentials.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.h"
#include "terrace/error.h"

namespace terrace::front {

// Who is at the other end, as the kernel says.
struct Credentials {
  std::int32_t pid = 0;
  std::uint32_t uid = 0;
};

struct Accepted {
  Fd connection;  // non-blocking, close-on-exec; none: there was no descriptor for it
  Credentials credentials;
};

class Listener {
 public:
  // Binds `path` (its folder is made if need be) with `mode`. A socket that a dead daemon left is replaced; one that a
  // live daemon holds, and any other kind of file, is kFailedPrecondition naming it. `socket_type`: SOCK_STREAM or
  // SOCK_SEQPACKET.
  static Result<Listener> bind(const std::string& path, int socket_type, mode_t mode);

  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&&) = delete;
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  // Removes the socket's file, unless another one is there. The lock's file stays: removing it would let two daemons
  // lock two files of one name.
  ~Listener();

  int descriptor() const { return socket_.get(); }
  const std::string& path() const { return path_; }

  // The next connection; none if there is none. When the process has no descriptor left, the connection is accepted on
  // a spare one and closed at once, which leaves who it was: it must not stay in the queue, where it would wake the
  // reactor for ever.
  std::optional<Accepted> accept();

  // Whether the path still leads to this socket, and the lock's path to its lock: not where somebody cleaned the
  // folder.
  bool in_place() const;
  // Makes what is missing of folder, lock and socket again, as they were. Returns the socket that was there before,
  // whose connections go on; nobody finds it any more. Errors as bind(): then it stays, and this may be called again.
  Result<Fd> renew();

 private:
  // Which file a path led to.
  struct Identity {
    dev_t device = 0;
    ino_t file = 0;
    bool operator==(const Identity&) const = default;
  };
  static Identity identity_of(const std::string& path);

  Listener(std::string path, int socket_type, mode_t mode, Fd lock, Fd socket);
  std::string lock_path() const { return path_ + ".lock"; }
  bool has_lock_in_place() const;

  std::string path_;
  int socket_type_;
  mode_t mode_;
  mode_t folder_mode_;
  Identity identity_;
  Fd lock_;  // an flock on "<path>.lock" says that the daemon lives, whatever became of the socket's file
  Fd socket_;
  Fd spare_;
};

}  // namespace terrace::front
