// SPDX-License-Identifier: Apache-2.0
// The daemon's side of systemd's file-descriptor store: what is given to the supervisor comes back to the next daemon
// (sd_notify(3), sd_listen_fds(3), systemd.io/FILE_DESCRIPTOR_STORE). One code path for systemd and `terraced
// supervise`.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/time.h"
#include "service/notify_socket.h"
#include "terrace/error.h"

namespace terrace::service {

inline constexpr std::size_t kDescriptorNameBytesMax = 255;
// All names come back in one string of the environment, LISTEN_FDNAMES, which execve(2) limits to 32 pages. Past that
// the next daemon does not start at all, so the sum over names of (bytes + 1) stays below.
inline constexpr std::size_t kAllNamesBytesMax = std::size_t{32} * 4096 - sizeof "LISTEN_FDNAMES=";
// Messages that wait for room in the supervisor's queue.
inline constexpr std::size_t kPendingMessagesMax = 4096;

// kInvalidArgument unless `name` has 1 to 255 printable ASCII characters other than ':'.
Result<void> check_descriptor_name(std::string_view name);

// Name to descriptor, as the former daemon stored them.
using Adopted = std::map<std::string, Fd>;

// kDataLoss, naming what is missing, unless every name of `given` is in `adopted`. A full store drops descriptors
// without a word, so the record of what was given (the catalog) is compared with what came back.
Result<void> check_all_returned(const Adopted& adopted, std::span<const std::string> given);

// Used by one thread, the reactor; nothing blocks but settle(). Descriptors are stored with FDPOLL=0: the supervisor
// keeps them also when they hang up.
class DescriptorStore {
 public:
  // A store that keeps nothing.
  DescriptorStore() = default;
  // The supervisor of $NOTIFY_SOCKET, whose store holds $FDSTORE descriptors (systemd says so from 254 on; before, the
  // unit does). Without either it keeps nothing. Errors as NotifySocket::from_environment().
  static Result<DescriptorStore> from_environment();

  // Whether anything outlives this process. Where not, all calls succeed and do nothing.
  bool keeps() const { return static_cast<bool>(socket_); }
  // How many descriptors it can hold, and holds: those adopted and those given since, less those forgotten.
  std::size_t capacity() const { return capacity_; }
  std::size_t size() const { return names_.size(); }

  // Takes what the supervisor passed: once, at start, before there are threads (it reads LISTEN_PID, LISTEN_FDS and
  // LISTEN_FDNAMES and takes them out of the environment). All close-on-exec. Empty where nothing was passed to this
  // process. kFailedPrecondition: count, names or descriptors are not as the protocol says; the supervisor still holds
  // everything.
  Result<Adopted> adopt();

  // Gives the supervisor a duplicate of `descriptor`. Give an open file once: systemd takes a second name of the same
  // one for a repetition, and drops it. kAlreadyExists: the name is stored. kResourceExhausted: the store, the names'
  // room or the queue is full; nothing happened. kUnavailable: the supervisor has gone.
  Result<void> store(std::string_view name, int descriptor);
  // Has the supervisor close it. kNotFound: no such name; other errors as store().
  Result<void> forget(std::string_view name);

  // A descriptor that hangs up (POLLHUP) when the supervisor has handled all that was sent before: only then is it safe
  // from this process' death. Where nothing is kept, it has hung up already. Errors as store().
  Result<Fd> barrier();
  // Blocks until all that was sent is handled. kDeadlineExceeded after `limit`; other errors as store(). For start-up.
  Result<void> settle(Duration limit);

  // Messages wait for room in the supervisor's queue: call flush() when descriptor() is writable (POLLOUT).
  bool pending() const { return !pending_.empty(); }
  int descriptor() const { return socket_.descriptor(); }
  // Sends what waits, as far as there is room. An error leaves it waiting, and its barriers without their end; stop
  // polling then.
  Result<void> flush();

 private:
  struct Message {
    std::string text;
    Fd descriptor;
  };
  DescriptorStore(NotifySocket socket, std::size_t capacity) : socket_(std::move(socket)), capacity_(capacity) {}
  Result<void> send(std::string text, int descriptor);
  Result<void> note(const std::vector<std::string>& names);

  NotifySocket socket_;
  std::size_t capacity_ = 0;
  std::set<std::string, std::less<>> names_;
  std::size_t names_bytes_ = 0;  // with one more a name
  std::deque<Message> pending_;
};

}  // namespace terrace::service
