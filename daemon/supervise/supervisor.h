// SPDX-License-Identifier: Apache-2.0
// `terraced supervise`: keeps a daemon running, and what it gave to be kept, where there is no systemd to do so
// (DESIGN decision 8). One thread; the protocol is systemd's (service/descriptor_store.h is the other side).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/time.h"
#include "terrace/error.h"

namespace terrace::supervise {

struct Options {
  std::vector<std::string> command;                      // program and arguments
  std::size_t store_max = 16384;                         // descriptors kept at once; cut to what this process may open
  Duration watchdog = std::chrono::seconds(30);          // without WATCHDOG=1 for so long it is aborted; zero: never
  Duration start_timeout = std::chrono::minutes(15);     // without READY=1 for so long it is aborted; zero: never
  Duration stop_timeout = std::chrono::seconds(20);      // after it was told to end, or aborted, it is killed
  Duration restart_delay_max = std::chrono::seconds(5);  // the longest wait between a death and the next start
};

// Runs the command and starts it again whenever it ends, with the descriptors that it stored, until SIGTERM or SIGINT,
// which are passed on: then the exit status for this process, the child's own (128 and the signal if it was killed).
// SIGHUP ends the child by SIGTERM and starts what is at the program's path then. Says what it does on stderr, and
// READY=1 to its own supervisor when the child is. Errors: what it needs for itself could not be had; nothing was
// started. Called once, by a process with one thread.
Result<int> supervise(const Options& options);

}  // namespace terrace::supervise
