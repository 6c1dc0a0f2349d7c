// SPDX-License-Identifier: Apache-2.0
// What of a process's memory is resident, by what it is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

namespace terrace::bench {

// Resident bytes of each mapping of the process (smaps), summed by name: that of the file or memfd behind it, and ""
// for memory without one (heap, stacks).
std::map<std::string, std::uint64_t> resident_by_name(pid_t pid);

}  // namespace terrace::bench
