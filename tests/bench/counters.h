// SPDX-License-Identifier: Apache-2.0
// What a process or thread has taken so far, from what the kernel counts whether or not anybody looks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "terrace/error.h"

namespace terrace::bench {

struct Counters {
  std::uint64_t cpu_ns = 0;     // user's and system's together (schedstat: not sampled at ticks)
  std::uint64_t user_ns = 0;    // sampled at ticks where the kernel does so: for long runs
  std::uint64_t waits = 0;      // voluntary context switches: each is one wake-up afterwards
  std::uint64_t preempted = 0;  // involuntary ones

  Counters operator-(const Counters& earlier) const;
};

// All threads that the process has now, and the CPU of those that have ended as well; or the thread alone. Zeros where
// it is gone.
Counters counters_of_process(pid_t pid);
Counters counters_of_thread(pid_t pid, pid_t thread);
// The calling thread.
Counters counters_of_this_thread();

// The process's resident memory that is its own (RssAnon), what it has of shared mappings (RssShmem), in bytes.
struct Resident {
  std::uint64_t own_bytes = 0;
  std::uint64_t shared_bytes = 0;
};
Resident resident_of(pid_t pid);

// Instructions that a thread retired in user space, by the processor's own counter (perf_event_open). Many virtual
// machines have none: then there is no figure, and rows say so by leaving that count out.
class Instructions {
 public:
  // Of a thread of any process; 0: the calling one. Counts from here on.
  explicit Instructions(pid_t thread = 0);
  Instructions(const Instructions&) = delete;
  Instructions& operator=(const Instructions&) = delete;
  ~Instructions();
  // So far; nothing where they cannot be counted.
  std::optional<std::uint64_t> count() const;

 private:
  int event_ = -1;
};

// How often `body` calls the system, counted by tracing a child process that runs it (ptrace): the clock suffers, the
// count does not. `body` gives 0 where all went well; it begins after `prepare`, whose calls are not counted.
// kPermissionDenied where nobody may be traced.
Result<std::uint64_t> count_system_calls(const std::function<int()>& prepare, const std::function<int()>& body);

}  // namespace terrace::bench
