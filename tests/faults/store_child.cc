// SPDX-License-Identifier: Apache-2.0
// A small service that keeps memfds in its supervisor's descriptor store, does as it is told, and misbehaves on demand:
//   store_child serve FOLDER           takes commands on FOLDER/control; notes its starts and signals in FOLDER/notes
//   store_child ask FOLDER WORD...     sends one command and prints the answer
// Commands (answers are "ok", what was asked for, or "error: ..."):
//   pid | list | count                 its pid; "name=content" a line, sorted; how many
//   open | notify                      all its descriptors, "number target" a line; NOTIFY_SOCKET
//   store NAME TEXT | forget NAME      acknowledged before the answer
//   store-and-die NAME TEXT            SIGKILLs itself right after sending, unacknowledged
//   send COUNT BYTES                   stores COUNT more past its own bounds, with names of BYTES
//   garbage | flood COUNT              malformed messages of every kind; COUNT of one kind
//   hang | deaf | exit-with N          stops reporting and answering; ignores SIGTERM; its status at SIGTERM or SIGINT
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "faults/store_control.h"
#include "service/descriptor_store.h"
#include "service/environment.h"

namespace terrace::faults {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);

Fd memory_with(const std::string& text) {
  Fd memory(memfd_create("store_child", MFD_CLOEXEC));
  TERRACE_CHECK(pwrite(memory.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  return memory;
}

std::string text_of(const Fd& memory) {
  std::array<char, 256> bytes{};
  const ssize_t count = pread(memory.get(), bytes.data(), bytes.size(), 0);
  return count < 0 ? "unreadable" : std::string(bytes.data(), static_cast<std::size_t>(count));
}

std::string outcome(const Result<void>& result) { return result ? "ok" : "error: " + result.error().message; }

class Service {
 public:
  Service(std::filesystem::path folder, service::DescriptorStore store, service::Adopted held)
      : folder_(std::move(folder)), store_(std::move(store)), held_(std::move(held)) {
    auto notify = service::NotifySocket::from_environment();
    if (notify) notify_ = std::move(*notify);
  }

  int run() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    const Fd signals(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    const Fd listener(listen_for_commands(folder_));
    TERRACE_CHECK(signals && listener);
    note("started");
    tell("READY=1");
    const auto period =
        std::chrono::duration_cast<std::chrono::milliseconds>(service::watchdog_period_from_environment());
    const int timeout = period.count() > 0 ? static_cast<int>(period.count() / 2) + 1 : -1;
    while (true) {
      std::array<pollfd, 2> waited{{{signals.get(), POLLIN, 0}, {listener.get(), POLLIN, 0}}};
      static_cast<void>(poll(waited.data(), waited.size(), timeout));
      tell("WATCHDOG=1");
      signalfd_siginfo info{};
      while (read(signals.get(), &info, sizeof info) == sizeof info) {
        note(fmt::format("signal {}", info.ssi_signo));
        if (info.ssi_signo != SIGHUP && !deaf_) return status_;
      }
      if ((waited[1].revents & POLLIN) != 0) take_command(listener.get());
    }
  }

 private:
  void note(const std::string& what) const {
    std::ofstream(folder_ / "notes", std::ios::app) << fmt::format("{} {}\n", getpid(), what);
  }

  // Blocks until the supervisor has read it; this child has nothing better to do.
  void tell(std::string_view message, std::span<const int> descriptors = {}) const {
    while (true) {
      const auto sent = notify_.send(message, descriptors);
      if (!sent || *sent) return;
      pollfd room{notify_.descriptor(), POLLOUT, 0};
      static_cast<void>(poll(&room, 1, -1));
    }
  }

  void take_command(int listener) {
    const Fd connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    std::string command(kControlBytesMax, '\0');
    const ssize_t count = recv(connection.get(), command.data(), command.size(), 0);
    if (count <= 0) return;
    command.resize(static_cast<std::size_t>(count));
    const std::string answer = answer_to(command);
    static_cast<void>(::send(connection.get(), answer.data(), answer.size(), MSG_NOSIGNAL));
    if (hangs_) hang();
  }

  std::string answer_to(const std::string& command) {
    std::istringstream words(command);
    std::string verb;
    std::string first;
    std::string second;
    words >> verb >> first >> second;
    if (verb == "pid") return std::to_string(getpid());
    if (verb == "list") return list();
    if (verb == "count") return std::to_string(held_.size());
    if (verb == "open") return list_open();
    if (verb == "notify") return std::getenv("NOTIFY_SOCKET");
    if (verb == "store" || verb == "store-and-die") return store(first, second, verb != "store");
    if (verb == "forget") return forget(first);
    if (verb == "send") return send_past_bounds(std::stoul(first), std::stoul(second));
    if (verb == "garbage") return send_garbage();
    if (verb == "flood") return flood(std::stoul(first));
    if (verb == "exit-with") status_ = std::stoi(first);
    if (verb == "hang") hangs_ = true;
    if (verb == "deaf") deaf_ = true;
    return "ok";
  }

  std::string list() const {
    std::string lines;
    for (const auto& [name, memory] : held_) lines += fmt::format("{}={}\n", name, text_of(memory));
    return lines.empty() ? "nothing\n" : lines;
  }

  static std::string list_open() {
    std::string lines;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      lines += fmt::format("{} {}\n", entry.path().filename().string(), read_symlink(entry.path(), closed).string());
    }
    return lines;
  }

  std::string store(const std::string& name, const std::string& text, bool dies) {
    Fd memory = memory_with(text);
    if (auto stored = store_.store(name, memory.get()); !stored) return outcome(stored);
    if (dies) kill(getpid(), SIGKILL);
    held_.insert_or_assign(name, std::move(memory));
    return outcome(store_.settle(kPatience));
  }

  std::string forget(const std::string& name) {
    if (auto forgotten = store_.forget(name); !forgotten) return outcome(forgotten);
    held_.erase(name);
    return outcome(store_.settle(kPatience));
  }

  std::string send_past_bounds(std::size_t count, std::size_t name_bytes) {
    for (std::size_t i = 0; i < count; ++i) {
      std::string name = fmt::format("extra-{}-", i);
      name.resize(std::max(name.size(), name_bytes), 'x');
      const Fd memory = memory_with("extra");
      const int descriptor = memory.get();
      tell("FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, {&descriptor, 1});
    }
    return outcome(store_.settle(kPatience));
  }

  std::string send_garbage() {
    const Fd memory = memory_with("garbage");
    const std::vector<int> many(service::kMessageDescriptorsMax, memory.get());
    const int one = memory.get();
    tell("no assignment", {&one, 1});
    tell(std::string("READY=1\0WATCHDOG=1", 18));
    tell("\n\n\n");
    tell(std::string(service::kMessageBytesMax - 1, '\xff'));
    tell("FDSTORE=1\nFDNAME=a:b", {&one, 1});
    tell("FDSTORE=1\nFDNAME=", {&one, 1});
    tell("FDSTORE=1\nFDNAME=without");
    tell("FDSTORE=1\nFDNAME=many", many);
    tell("FDSTOREREMOVE=1");
    tell("STATUS=with", many);
    tell("BARRIER=1");
    tell("BARRIER=1\nFDSTORE=1\nFDNAME=both", {&one, 1});
    return outcome(store_.settle(kPatience));
  }

  std::string flood(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) tell("=");
    for (std::size_t i = 0; i < count; ++i) tell("garbage");
    return outcome(store_.settle(kPatience));
  }

  [[noreturn]] static void hang() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that fails leaves nothing
    while (true) pause();
  }

  std::filesystem::path folder_;
  service::DescriptorStore store_;
  service::NotifySocket notify_;
  service::Adopted held_;
  int status_ = 0;
  bool hangs_ = false;
  bool deaf_ = false;
};

int serve(const char* folder) {
  auto store = service::DescriptorStore::from_environment();
  if (!store) {
    fmt::print(stderr, "store_child: {}\n", store.error().message);
    return 3;
  }
  auto adopted = store->adopt();
  if (!adopted) {
    fmt::print(stderr, "store_child: {}\n", adopted.error().message);
    return 4;
  }
  return Service(folder, std::move(*store), std::move(*adopted)).run();
}

}  // namespace
}  // namespace terrace::faults

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() >= 2 && arguments[0] == "serve") return terrace::faults::serve(argv[2]);
  if (arguments.size() < 3 || arguments[0] != "ask") return 2;
  std::string command = arguments[2];
  for (std::size_t i = 3; i < arguments.size(); ++i) command += " " + arguments[i];
  const auto answer = terrace::faults::ask(arguments[1], command);
  if (!answer) return 1;
  fmt::print("{}{}", *answer, answer->ends_with('\n') ? "" : "\n");
  return answer->starts_with("error") ? 1 : 0;
}
