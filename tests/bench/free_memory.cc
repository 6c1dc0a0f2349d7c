// SPDX-License-Identifier: Apache-2.0
#include "bench/free_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/bytes.h"

namespace terrace::bench {

FreeMemory free_memory(std::istream& meminfo) {
  std::map<std::string, std::uint64_t> said;  // "MemAvailable:  123 kB"
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t value = 0;
    if (words >> name >> value) said[name] = value;
  }
  return {.ordinary_bytes = said["MemAvailable:"] * kKiB,
          .huge_bytes = said["HugePages_Free:"] * said["Hugepagesize:"] * kKiB};
}

std::string lack_of_memory(const FreeMemory& free, std::uint64_t tier_bytes, std::uint64_t beside_bytes) {
  const std::uint64_t needed = tier_bytes - std::min(tier_bytes, free.huge_bytes) + beside_bytes;
  if (free.ordinary_bytes >= needed) return {};
  return fmt::format("{} of memory are available beside {} in free huge pages, {} are needed",
                     format_bytes(free.ordinary_bytes), format_bytes(free.huge_bytes), format_bytes(needed));
}

}  // namespace terrace::bench
