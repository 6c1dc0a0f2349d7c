// SPDX-License-Identifier: Apache-2.0
#include "bench/mappings.h"

#include <fmt/format.h>

#include <fstream>

namespace terrace::bench {
namespace {

// "7f00-7f01 rw-s 00000000 00:01 12   /memfd:terrace-catalog (deleted)" -> "terrace-catalog"
std::string name_of(const std::string& line) {
  const std::size_t memfd = line.find("/memfd:");
  const std::size_t at = memfd != std::string::npos ? memfd + 7 : line.find('/');
  if (at == std::string::npos) return "";
  return line.substr(at, line.find(" (deleted)") - at);
}

bool begins_mapping(const std::string& line) {
  const std::size_t dash = line.find('-');
  return dash != std::string::npos && dash < line.find(':') && dash < line.find(' ');
}

}  // namespace

std::map<std::string, std::uint64_t> resident_by_name(pid_t pid) {
  std::map<std::string, std::uint64_t> sums;
  std::ifstream lines(fmt::format("/proc/{}/smaps", pid));
  std::string name;
  for (std::string line; std::getline(lines, line);) {
    if (begins_mapping(line))
      name = name_of(line);
    else if (line.starts_with("Rss:"))
      sums[name] += std::stoull(line.substr(4)) * 1024;
  }
  return sums;
}

}  // namespace terrace::bench
