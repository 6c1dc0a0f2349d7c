// SPDX-License-Identifier: Apache-2.0
// What memory the machine has free, and whether a daemon's tier fits into it.
#pragma once

#include <cstdint>
#include <istream>
#include <string>

namespace terrace::bench {

struct FreeMemory {
  std::uint64_t ordinary_bytes = 0;
  std::uint64_t huge_bytes = 0;  // in pages that are reserved for who asks for them, and not part of the other
};

// From what /proc/meminfo says.
FreeMemory free_memory(std::istream& meminfo);

// That a tier, which takes huge pages as far as there are any, does not fit beside as much ordinary memory as is needed
// otherwise. Empty: it does.
std::string lack_of_memory(const FreeMemory& free, std::uint64_t tier_bytes, std::uint64_t beside_bytes);

}  // namespace terrace::bench
