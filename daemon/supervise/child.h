// SPDX-License-Identifier: Apache-2.0
// Starts the daemon as a child of the supervisor: with the kept descriptors, and with nothing else of the supervisor's.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/time.h"
#include "supervise/kept_descriptors.h"
#include "terrace/error.h"

namespace terrace::supervise {

struct ChildOptions {
  std::vector<std::string> command;  // the program's path, looked up anew at each start, and its arguments
  std::string notify_socket;
  Duration watchdog{0};  // zero: none
};

// A running or dead child; not reaped before wait().
struct Child {
  pid_t pid = -1;
  Fd process;  // pidfd: readable when it is dead
};

// How a child ended, as a shell tells it: the exit code, or 128 and the signal.
struct Ending {
  int status = 0;
  bool by_signal = false;
};

// Forks and executes. In the child: `kept` as descriptors 3 and up in the order of their names, announced by
// LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES; 0 to 2 as here; all others closed. NOTIFY_SOCKET, WATCHDOG_USEC,
// WATCHDOG_PID and FDSTORE are its own, the rest of the environment as here. No signal is blocked or ignored for it
// that prepare_process() blocked or ignored here; SIGTERM when this process dies; a process group of its own. A program
// that cannot be executed is a child that exits with 127. kResourceExhausted: no process could be made. Only while this
// process has one thread.
Result<Child> start_child(const ChildOptions& options, const KeptDescriptors& kept);

// Reaps it; it must be dead.
Ending wait_for(const Child& child);

// Once at start: 0 to 2 are open, every other descriptor that was inherited is close-on-exec, as many descriptors may
// be open as the hard limit allows, SIGPIPE is ignored, and SIGTERM, SIGINT and SIGHUP come by the returned signalfd
// alone.
Result<Fd> prepare_process();

}  // namespace terrace::supervise
