// SPDX-License-Identifier: Apache-2.0
#include "bench/counters.h"

#include <fmt/format.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

namespace terrace::bench {
namespace {

constexpr int kNotTraced = 255;

// The number behind "key:" in a file of such lines; 0 if there is none.
std::uint64_t number_in(const std::string& file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1));
  return 0;
}

// Field 14 of stat, user time in ticks, counted behind the name, which may hold blanks.
std::uint64_t user_ns_of(const std::string& task) {
  std::string line;
  std::getline(std::ifstream(task + "/stat"), line);
  const std::size_t behind = line.rfind(')');
  if (behind == std::string::npos) return 0;
  std::size_t at = behind;
  for (int field = 2; field < 14; ++field) at = line.find(' ', at + 1);
  static const auto ticks = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  return at == std::string::npos ? 0 : std::stoull(line.substr(at + 1)) * (1'000'000'000 / ticks);
}

Counters counters_of_task(const std::string& task) {
  Counters counters;
  std::ifstream(task + "/schedstat") >> counters.cpu_ns;
  counters.user_ns = user_ns_of(task);
  counters.waits = number_in(task + "/status", "voluntary_ctxt_switches");
  counters.preempted = number_in(task + "/status", "nonvoluntary_ctxt_switches");
  return counters;
}

std::uint64_t ns_of_clock(clockid_t clock) {
  timespec used{};
  if (::clock_gettime(clock, &used) != 0) return 0;
  return static_cast<std::uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(used.tv_nsec);
}

// In a child that is traced: stops where the counting begins and where it ends.
[[noreturn]] void run_traced(const std::function<int()>& prepare, const std::function<int()>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kNotTraced);
  if (const int failed = prepare(); failed != 0) ::_exit(failed);
  const auto stop = [pid = ::getpid(), thread = ::gettid()] { ::syscall(SYS_tgkill, pid, thread, SIGSTOP); };
  stop();
  const int failed = body();
  stop();
  ::_exit(failed);
}

// Whether the traced thread stopped at the begin of a call.
bool begins_call(pid_t thread) {
  __ptrace_syscall_info info{};
  return ::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) > 0 && info.op == PTRACE_SYSCALL_INFO_ENTRY;
}

}  // namespace

Counters Counters::operator-(const Counters& earlier) const {
  return {cpu_ns - earlier.cpu_ns, user_ns - earlier.user_ns, waits - earlier.waits, preempted - earlier.preempted};
}

Counters counters_of_process(pid_t pid) {
  Counters sum;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), gone)) {
    const Counters counters = counters_of_task(task.path().string());
    sum.user_ns += counters.user_ns;
    sum.waits += counters.waits;
    sum.preempted += counters.preempted;
  }
  clockid_t clock{};
  if (pid > 0 && ::clock_getcpuclockid(pid, &clock) == 0) sum.cpu_ns = ns_of_clock(clock);
  return sum;
}

Counters counters_of_thread(pid_t pid, pid_t thread) {
  return counters_of_task(fmt::format("/proc/{}/task/{}", pid, thread));
}

// schedstat of a thread that runs is as old as its last tick: a short one has used nothing by it.
Counters counters_of_this_thread() {
  Counters counters = counters_of_task("/proc/thread-self");
  counters.cpu_ns = ns_of_clock(CLOCK_THREAD_CPUTIME_ID);
  return counters;
}

Resident resident_of(pid_t pid) {
  const std::string status = fmt::format("/proc/{}/status", pid);
  return {number_in(status, "RssAnon") * 1024, number_in(status, "RssShmem") * 1024};
}

Instructions::Instructions(pid_t thread) {
  perf_event_attr attributes{};
  attributes.size = sizeof(attributes);
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  event_ = static_cast<int>(::syscall(SYS_perf_event_open, &attributes, thread, -1, -1, PERF_FLAG_FD_CLOEXEC));
}

Instructions::~Instructions() {
  if (event_ >= 0) ::close(event_);
}

std::optional<std::uint64_t> Instructions::count() const {
  std::uint64_t count = 0;
  if (event_ < 0 || ::read(event_, &count, sizeof(count)) != sizeof(count)) return std::nullopt;
  return count;
}

Result<std::uint64_t> count_system_calls(const std::function<int()>& prepare, const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child < 0) return fail(ErrorCode::kUnavailable, "no process could be made to be traced", errno);
  if (child == 0) run_traced(prepare, body);
  std::uint64_t calls = 0;
  int status = 0;
  int own_stops = 0;  // run_traced's
  while (::waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    const int signal = WSTOPSIG(status);
    const bool at_call = signal == (SIGTRAP | 0x80);
    if (signal == SIGSTOP && ++own_stops == 1)
      ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    if (at_call && begins_call(child)) ++calls;
    const bool passed_on = signal != SIGSTOP && !at_call;
    ::ptrace(own_stops == 1 ? PTRACE_SYSCALL : PTRACE_CONT, child, nullptr, passed_on ? signal : 0);
  }
  const int exited = WIFEXITED(status) ? WEXITSTATUS(status) : kNotTraced - 1;
  if (exited == kNotTraced)
    return fail(ErrorCode::kPermissionDenied, "no process may be traced here, to count system calls");
  if (exited != 0) return fail(ErrorCode::kInternal, fmt::format("what was traced failed with status {}", exited));
  return calls - 1;  // the one that ended the counting
}

}  // namespace terrace::bench
