// SPDX-License-Identifier: Apache-2.0
#include "supervise/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace terrace::supervise {
namespace {

constexpr int kFirstPassed = 3;  // SD_LISTEN_FDS_START
constexpr int kNotExecuted = 127;

std::unexpected<Error> refused(const char* call) {
  return fail(ErrorCode::kResourceExhausted, fmt::format("{}: {}", call, std::strerror(errno)), errno);
}

sigset_t our_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
  return set;
}

bool is_ours(std::string_view variable) {
  for (const std::string_view name : {"NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID=", "FDSTORE=", "LISTEN_PID=",
                                      "LISTEN_FDS=", "LISTEN_FDNAMES="})
    if (variable.starts_with(name)) return true;
  return false;
}

// All but what holds the child's own number, which only the child knows.
std::vector<std::string> environment_for(const ChildOptions& options, const KeptDescriptors& kept) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable)
    if (!is_ours(*variable)) variables.emplace_back(*variable);
  variables.push_back("NOTIFY_SOCKET=" + options.notify_socket);
  variables.push_back(fmt::format("FDSTORE={}", kept.capacity()));
  if (options.watchdog > Duration::zero()) {
    variables.push_back(fmt::format("WATCHDOG_USEC={}",
                                    std::chrono::duration_cast<std::chrono::microseconds>(options.watchdog).count()));
  }
  if (kept.size() == 0) return variables;
  std::string names = "LISTEN_FDNAMES=";
  for (const auto& [name, descriptor] : kept.by_name()) names += name + ":";
  names.pop_back();
  variables.push_back(std::move(names));
  variables.push_back(fmt::format("LISTEN_FDS={}", kept.size()));
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Moves the descriptors to 3, 4, ... in their order, where other ones of them may lie, with at most one more open at a
// time. What else lay there is closed.
bool line_up(std::vector<int> descriptors) {
  const int end = kFirstPassed + static_cast<int>(descriptors.size());
  constexpr std::size_t kNobody = SIZE_MAX;
  std::vector<std::size_t> owners(descriptors.size(), kNobody);  // which of them lies at each target
  const auto owner_at = [&](int descriptor) -> std::size_t* {
    const bool inside = descriptor >= kFirstPassed && descriptor < end;
    return inside ? &owners[static_cast<std::size_t>(descriptor - kFirstPassed)] : nullptr;
  };
  for (std::size_t i = 0; i < descriptors.size(); ++i)
    if (std::size_t* owner = owner_at(descriptors[i])) *owner = i;

  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    const int target = kFirstPassed + static_cast<int>(i);
    if (descriptors[i] == target) {
      if (fcntl(target, F_SETFD, 0) != 0) return false;
      continue;
    }
    if (owners[i] != kNobody) {
      const int moved = fcntl(target, F_DUPFD_CLOEXEC, end);
      if (moved < 0) return false;
      descriptors[owners[i]] = moved;
    }
    if (dup2(descriptors[i], target) < 0) return false;
    if (std::size_t* owner = owner_at(descriptors[i])) {
      *owner = kNobody;
    } else {
      close(descriptors[i]);
    }
  }
  return true;
}

// In the child; returns the errno of what failed.
int execute(std::vector<std::string>& command, std::vector<std::string>& variables, const std::vector<int>& descriptors,
            pid_t parent) {
  const sigset_t signals = our_signals();
  std::signal(SIGPIPE, SIG_DFL);
  if (setpgid(0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) return errno;
  if (getppid() != parent) return ESRCH;
  if (!line_up(descriptors)) return errno;
  const auto end = static_cast<unsigned>(kFirstPassed + descriptors.size());
  static_cast<void>(syscall(SYS_close_range, end, ~0U, CLOSE_RANGE_CLOEXEC));
  for (const char* name : {"LISTEN_PID", "WATCHDOG_PID"}) variables.push_back(fmt::format("{}={}", name, getpid()));
  if (sigprocmask(SIG_UNBLOCK, &signals, nullptr) != 0) return errno;
  execve(command[0].c_str(), pointers_to(command).data(), pointers_to(variables).data());
  return errno;
}

}  // namespace

Result<Child> start_child(const ChildOptions& options, const KeptDescriptors& kept) {
  TERRACE_CHECK(!options.command.empty());
  std::vector<std::string> command = options.command;
  std::vector<std::string> variables = environment_for(options, kept);
  std::vector<int> descriptors;
  for (const auto& [name, descriptor] : kept.by_name()) descriptors.push_back(descriptor.get());
  const pid_t parent = getpid();
  Child child;
  child.pid = fork();
  if (child.pid < 0) return refused("fork");
  if (child.pid == 0) {
    const int error = execute(command, variables, descriptors, parent);
    fmt::print(stderr, "terraced supervise: {} cannot be started: {}\n", command[0], std::strerror(error));
    std::fflush(stderr);
    _exit(kNotExecuted);
  }
  child.process = Fd(static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0)));
  if (!child.process) {
    const auto error = refused("pidfd_open");
    kill(child.pid, SIGKILL);
    static_cast<void>(waitpid(child.pid, nullptr, 0));
    return error;
  }
  return child;
}

Ending wait_for(const Child& child) {
  int status = 0;
  pid_t reaped = 0;
  do reaped = waitpid(child.pid, &status, 0);
  while (reaped < 0 && errno == EINTR);
  TERRACE_CHECK(reaped == child.pid);
  if (WIFSIGNALED(status)) return {128 + WTERMSIG(status), true};
  return {WEXITSTATUS(status), false};
}

Result<Fd> prepare_process() {
  int lowest = 0;
  do lowest = open("/dev/null", O_RDWR | O_CLOEXEC);
  while (lowest >= 0 && lowest < kFirstPassed);
  if (lowest < 0) return refused("/dev/null");
  // The three stay: a later descriptor of ours in their place would be the daemon's output.
  for (int standard = 0; standard < kFirstPassed; ++standard)
    if (const int flags = fcntl(standard, F_GETFD); (flags & FD_CLOEXEC) != 0) fcntl(standard, F_SETFD, 0);
  if (syscall(SYS_close_range, static_cast<unsigned>(kFirstPassed), ~0U, CLOSE_RANGE_CLOEXEC) != 0)
    return refused("close_range");
  close(lowest);

  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
  }
  const sigset_t signals = our_signals();
  if (std::signal(SIGPIPE, SIG_IGN) == SIG_ERR || sigprocmask(SIG_BLOCK, &signals, nullptr) != 0)
    return refused("signals");
  Fd receiver(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!receiver) return refused("signalfd");
  return receiver;
}

}  // namespace terrace::supervise
