// SPDX-License-Identifier: Apache-2.0
#include "supervise/notify_receiver.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ranges>
#include <utility>

#include "service/descriptor_store.h"
#include "service/notify_socket.h"

namespace terrace::supervise {
namespace {

constexpr int kQueueBytes = 8 << 20;

std::unexpected<Error> garbage(std::string what) { return fail(ErrorCode::kInvalidArgument, std::move(what)); }

std::unexpected<Error> not_made(const std::string& path, const char* call) {
  const int error = errno;
  return fail(ErrorCode::kFailedPrecondition,
              fmt::format("the notification socket {}: {}: {}; set TMPDIR to a folder that can hold it", path, call,
                          std::strerror(error)),
              error);
}

std::string parent_folder() {
  for (const char* name : {"RUNTIME_DIRECTORY", "TMPDIR"}) {
    const char* folder = std::getenv(name);
    if (folder != nullptr && folder[0] == '/') return folder;
  }
  return "/tmp";
}

// What came beside the bytes of one message.
struct Attached {
  pid_t sender = 0;
  std::vector<Fd> descriptors;
};

Attached take_attached(msghdr& message) {
  Attached attached;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    if (header->cmsg_type == SCM_CREDENTIALS && header->cmsg_len == CMSG_LEN(sizeof(ucred))) {
      ucred credentials{};
      std::memcpy(&credentials, CMSG_DATA(header), sizeof credentials);
      attached.sender = credentials.pid;
    } else if (header->cmsg_type == SCM_RIGHTS) {
      std::vector<int> numbers((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      std::memcpy(numbers.data(), CMSG_DATA(header), numbers.size() * sizeof(int));
      for (const int number : numbers) attached.descriptors.emplace_back(number);
    }
  }
  return attached;
}

// Sets what one line of a message says; false: the line is no assignment.
bool apply(std::string_view line, Notification& notification) {
  constexpr std::string_view kName = "FDNAME=";
  if (line.find('=') == std::string_view::npos || line.find('\0') != std::string_view::npos) return false;
  if (line == "READY=1") notification.ready = true;
  if (line == "STOPPING=1") notification.stopping = true;
  if (line == "WATCHDOG=1") notification.watchdog = true;
  if (line == "BARRIER=1") notification.barrier = true;
  if (line == "FDSTORE=1") notification.store = Notification::Store::kAdd;
  if (line == "FDSTOREREMOVE=1") notification.store = Notification::Store::kRemove;
  if (line.starts_with(kName)) notification.name = line.substr(kName.size());
  return true;
}

}  // namespace

Result<Notification> parse_notification(std::string_view text, std::vector<Fd> descriptors) {
  Notification notification;
  std::size_t lines = 0;
  for (const auto part : std::views::split(text, '\n')) {
    const std::string_view line(part.begin(), part.end());
    if (line.empty()) continue;
    if (!apply(line, notification)) return garbage("a line that is no assignment");
    ++lines;
  }
  if (lines == 0) return garbage("an empty message");
  if (notification.barrier && lines != 1) return garbage("BARRIER=1 with something else");
  if (notification.store != Notification::Store::kNothing) {
    if (auto valid = service::check_descriptor_name(notification.name); !valid)
      return std::unexpected(std::move(valid.error()));
  }
  const bool wants_one = notification.barrier || notification.store == Notification::Store::kAdd;
  if (descriptors.size() != (wants_one ? 1 : 0))
    return garbage(fmt::format("{} descriptors where {} belongs", descriptors.size(), wants_one ? "one" : "none"));
  notification.descriptors = std::move(descriptors);
  return notification;
}

NotifyReceiver::NotifyReceiver(std::string folder, std::string path, Fd socket)
    : folder_(std::move(folder)), path_(std::move(path)), socket_(std::move(socket)) {}

NotifyReceiver::~NotifyReceiver() {
  if (!socket_) return;
  unlink(path_.c_str());
  rmdir(folder_.c_str());
}

Result<NotifyReceiver> NotifyReceiver::create() {
  std::string folder = parent_folder() + "/terrace-supervise-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return not_made(folder, "making its folder");
  std::string path = folder + "/notify";
  NotifyReceiver receiver(std::move(folder), std::move(path), Fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)));
  const int on = 1;
  const int fd = receiver.descriptor();
  sockaddr_un address{};
  const socklen_t length = service::notify_address(receiver.path_, address);
  if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) return not_made(receiver.path_, "socket");
  // Room for bursts; the kernel cuts it to what it allows.
  static_cast<void>(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kQueueBytes, sizeof kQueueBytes));
  if (length == 0) {
    errno = ENAMETOOLONG;
    return not_made(receiver.path_, "bind");
  }
  if (fchmod(fd, 0600) != 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0)
    return not_made(receiver.path_, "bind");
  return receiver;
}

bool NotifyReceiver::in_place() const {
  struct stat facts{};
  return lstat(path_.c_str(), &facts) == 0 && S_ISSOCK(facts.st_mode);
}

std::optional<Result<Notification>> NotifyReceiver::receive(pid_t sender) {
  std::array<char, service::kMessageBytesMax> bytes{};
  alignas(cmsghdr)
      std::array<std::byte, CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(service::kMessageDescriptorsMax * sizeof(int))>
          control{};
  iovec text{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t count = 0;
  do count = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (count < 0 && errno == EINTR);
  if (count < 0) return std::nullopt;
  Attached attached = take_attached(message);
  if (attached.sender != sender) return fail(ErrorCode::kPermissionDenied, "not from the daemon");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return garbage("longer than a message may be");
  return parse_notification({bytes.data(), static_cast<std::size_t>(count)}, std::move(attached.descriptors));
}

}  // namespace terrace::supervise
