// SPDX-License-Identifier: Apache-2.0
#include "service/descriptor_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ranges>
#include <utility>

#include "base/check.h"
#include "service/environment.h"

namespace terrace::service {
namespace {

constexpr int kFirstPassed = 3;                // SD_LISTEN_FDS_START
constexpr std::size_t kNamesInMessageMax = 5;  // of those that a message could list

std::unexpected<Error> bad_environment(const std::string& what) {
  return fail(ErrorCode::kFailedPrecondition,
              fmt::format("the descriptors passed at start: {}; the supervisor still holds them", what));
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (const auto part : std::views::split(text, separator)) parts.emplace_back(part.begin(), part.end());
  return parts;
}

// The variables about passed descriptors, which no child of this process must see.
struct Passed {
  std::string count;
  std::optional<std::string> names;
};

// None where they are not there, or meant for another process.
std::optional<Passed> take_from_environment() {
  const auto pid = number_from_environment("LISTEN_PID");
  const char* count = std::getenv("LISTEN_FDS");
  const char* names = std::getenv("LISTEN_FDNAMES");
  std::optional<Passed> passed;
  if (pid == static_cast<std::uint64_t>(getpid()) && count != nullptr) {
    passed.emplace();
    passed->count = count;
    if (names != nullptr) passed->names = names;
  }
  for (const char* name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) unsetenv(name);
  return passed;
}

// Milliseconds for poll(2), rounded up.
int poll_timeout(Duration left) {
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(milliseconds, 0, 60'000));
}

}  // namespace

Result<void> check_descriptor_name(std::string_view name) {
  const bool printable = std::ranges::all_of(name, [](char c) { return c >= ' ' && c < 127 && c != ':'; });
  if (!name.empty() && name.size() <= kDescriptorNameBytesMax && printable) return {};
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("a stored descriptor's name has 1 to {} printable ASCII characters other than ':'; this one has {} "
                  "bytes{}",
                  kDescriptorNameBytesMax, name.size(), printable ? "" : ", of which some are none of these"));
}

Result<void> check_all_returned(const Adopted& adopted, std::span<const std::string> given) {
  std::vector<std::string> missing;
  for (const std::string& name : given)
    if (!adopted.contains(name)) missing.push_back(name);
  if (missing.empty()) return {};
  const std::size_t count = missing.size();
  missing.resize(std::min(count, kNamesInMessageMax));
  return fail(
      ErrorCode::kDataLoss,
      fmt::format("{} of {} stored descriptors did not come back: {}{}; the store was smaller than FDSTORE says "
                  "(FileDescriptorStoreMax=), or somebody removed them",
                  count, given.size(), fmt::join(missing, ", "), count > missing.size() ? ", ..." : ""));
}

Result<DescriptorStore> DescriptorStore::from_environment() {
  const auto capacity = number_from_environment("FDSTORE").value_or(0);
  if (capacity == 0) return DescriptorStore();
  auto socket = NotifySocket::from_environment();
  if (!socket) return std::unexpected(std::move(socket.error()));
  if (!*socket) return DescriptorStore();
  return DescriptorStore(std::move(*socket), capacity);
}

Result<Adopted> DescriptorStore::adopt() {
  const auto passed = take_from_environment();
  if (!passed || passed->count == "0") return Adopted();
  const auto names = split(passed->names.value_or(""), ':');
  if (passed->count != std::to_string(names.size()) || !passed->names) {
    return bad_environment(fmt::format("LISTEN_FDS is \"{}\" and LISTEN_FDNAMES has {} names; they must agree",
                                       passed->count, passed->names ? names.size() : 0));
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const int descriptor = kFirstPassed + static_cast<int>(i);
    if (fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0)
      return bad_environment(fmt::format("number {} ({}) is not open", descriptor, names[i]));
  }
  if (auto noted = note(names); !noted) return std::unexpected(std::move(noted.error()));
  Adopted adopted;
  for (std::size_t i = 0; i < names.size(); ++i) adopted.emplace(names[i], kFirstPassed + static_cast<int>(i));
  return adopted;
}

Result<void> DescriptorStore::note(const std::vector<std::string>& names) {
  std::set<std::string, std::less<>> noted;
  std::size_t bytes = 0;
  for (const std::string& name : names) {
    if (auto valid = check_descriptor_name(name); !valid) return bad_environment(valid.error().message);
    if (!noted.insert(name).second) return bad_environment(fmt::format("two are named {}; names are unique", name));
    bytes += name.size() + 1;
  }
  names_ = std::move(noted);
  names_bytes_ = bytes;
  return {};
}

Result<void> DescriptorStore::store(std::string_view name, int descriptor) {
  TERRACE_CHECK(descriptor >= 0);
  if (auto valid = check_descriptor_name(name); !valid) return valid;
  if (!keeps()) return {};
  if (names_.contains(name))
    return fail(ErrorCode::kAlreadyExists, fmt::format("a descriptor named {} is stored; forget it first", name));
  if (size() >= capacity_) {
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("the supervisor's store holds {} descriptors, as many as it can; raise FileDescriptorStoreMax= and "
                    "FDSTORE= in the unit, or --store-max of terraced supervise",
                    size()));
  }
  if (names_bytes_ + name.size() + 1 > kAllNamesBytesMax) {
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("{} stored descriptors have names of {} bytes together, and one start can pass {}: use shorter "
                    "names, or fewer descriptors",
                    size(), names_bytes_, kAllNamesBytesMax));
  }
  if (auto sent = send(fmt::format("FDSTORE=1\nFDPOLL=0\nFDNAME={}", name), descriptor); !sent) return sent;
  names_.emplace(name);
  names_bytes_ += name.size() + 1;
  return {};
}

Result<void> DescriptorStore::forget(std::string_view name) {
  if (!keeps()) return {};
  const auto found = names_.find(name);
  if (found == names_.end())
    return fail(ErrorCode::kNotFound, fmt::format("no descriptor named \"{}\" is stored", name));
  if (auto sent = send(fmt::format("FDSTOREREMOVE=1\nFDNAME={}", name), -1); !sent) return sent;
  names_bytes_ -= name.size() + 1;
  names_.erase(found);
  return {};
}

Result<Fd> DescriptorStore::barrier() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    return fail(ErrorCode::kResourceExhausted, fmt::format("a pipe for a barrier: {}", std::strerror(errno)), errno);
  Fd ours(ends[0]);
  const Fd theirs(ends[1]);
  if (keeps()) {
    // On its own, as the protocol asks: with anything else in the message systemd ignores all of it.
    if (auto sent = send("BARRIER=1", theirs.get()); !sent) return std::unexpected(std::move(sent.error()));
  }
  return ours;
}

Result<void> DescriptorStore::settle(Duration limit) {
  const MonotonicClock clock;
  const Time end = clock.now() + limit;
  const auto reached = barrier();
  if (!reached) return std::unexpected(reached.error());
  while (true) {
    if (auto flushed = flush(); !flushed) return flushed;
    const Duration left = end - clock.now();
    std::array<pollfd, 2> waited{{{reached->get(), 0, 0}, {pending() ? descriptor() : -1, POLLOUT, 0}}};
    if (poll(waited.data(), waited.size(), poll_timeout(left)) < 0 && errno != EINTR)
      return fail(ErrorCode::kInternal, fmt::format("poll: {}", std::strerror(errno)), errno);
    if ((waited[0].revents & POLLHUP) != 0) return {};
    if (left <= Duration::zero()) {
      return fail(ErrorCode::kDeadlineExceeded,
                  fmt::format("the supervisor did not take what it was given to keep within {} ms",
                              std::chrono::duration_cast<std::chrono::milliseconds>(limit).count()));
    }
  }
}

Result<void> DescriptorStore::send(std::string text, int descriptor) {
  if (pending_.empty()) {
    const auto sent = descriptor < 0 ? socket_.send(text) : socket_.send(text, {&descriptor, 1});
    if (!sent) return std::unexpected(sent.error());
    if (*sent) return {};
  }
  if (pending_.size() >= kPendingMessagesMax) {
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("{} messages wait for the supervisor, which does not read them", pending_.size()));
  }
  Message message{std::move(text), Fd(descriptor < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, 0))};
  if (descriptor >= 0 && !message.descriptor)
    return fail(ErrorCode::kResourceExhausted, fmt::format("duplicating a descriptor: {}", std::strerror(errno)),
                errno);
  pending_.push_back(std::move(message));
  return {};
}

Result<void> DescriptorStore::flush() {
  while (!pending_.empty()) {
    const Message& message = pending_.front();
    const int descriptor = message.descriptor.get();
    const auto sent = descriptor < 0 ? socket_.send(message.text) : socket_.send(message.text, {&descriptor, 1});
    if (!sent) return std::unexpected(sent.error());
    if (!*sent) return {};
    pending_.pop_front();
  }
  return {};
}

}  // namespace terrace::service
