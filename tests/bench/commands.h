// SPDX-License-Identifier: Apache-2.0
// What terrace-bench does besides its suites: each command takes the command line from its own name on, and returns the
// exit status.
#pragma once

namespace terrace::bench {

// Measures this machine's links, and writes them as a node file (docs/reference/workloads.md).
int calibrate_command(int argc, char** argv);
// Runs a workload on a live daemon and in virtual time, and compares the two (docs/reference/workloads.md).
int replay_command(int argc, char** argv);

}  // namespace terrace::bench
