// SPDX-License-Identifier: Apache-2.0
// What the tests of the cases in docs/internals/failures.md share: how often a fault is tried, figures, and processes
// that tell each other how far they are.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/check.h"
#include "e2e/terraced.h"

namespace terrace::faults {

// `bounded` in every test run, `full` in `tests/faults/run --long`.
inline std::uint64_t times(std::uint64_t bounded, std::uint64_t full) {
  return std::getenv("TERRACE_FAULTS_LONG") != nullptr ? full : bounded;
}

// A line that `tests/faults/run` puts into its table.
inline void figure(int number, const std::string& text) { std::printf("case %d: %s\n", number, text.c_str()); }

// Durations in milliseconds as "median 1.2 ms, longest 3.4 ms".
inline std::string spread(std::vector<double> milliseconds) {
  TERRACE_CHECK(!milliseconds.empty());
  std::ranges::sort(milliseconds);
  std::array<char, 80> text{};
  std::snprintf(text.data(), text.size(), "median %.1f ms, longest %.1f ms", milliseconds[milliseconds.size() / 2],
                milliseconds.back());
  return text.data();
}

inline double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// Shows what the daemons said, if the test failed. Declare it after the daemon.
class LogOfFailure {
 public:
  explicit LogOfFailure(const e2e::Terraced& terraced) : terraced_(terraced) {}
  LogOfFailure(const LogOfFailure&) = delete;
  LogOfFailure& operator=(const LogOfFailure&) = delete;
  ~LogOfFailure() {
    if (::testing::Test::HasFailure()) std::printf("%s", terraced_.log().c_str());
  }

 private:
  const e2e::Terraced& terraced_;
};

// Bytes of one process to another, made before the fork.
class Beacon {
 public:
  Beacon() { TERRACE_CHECK(::pipe2(ends_.data(), 0) == 0); }
  Beacon(const Beacon&) = delete;
  Beacon& operator=(const Beacon&) = delete;
  ~Beacon() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  // False: nobody can hear it.
  bool say(char what) const { return ::write(ends_[1], &what, 1) == 1; }
  // The next byte; 0 if none came in 60 s.
  char hear() const { return heard_within(60'000) ? take() : '\0'; }
  // The last byte that was said so far; 0: none.
  char last() const {
    char what = '\0';
    while (heard_within(0)) what = take();
    return what;
  }

 private:
  bool heard_within(int milliseconds) const {
    pollfd end{ends_[0], POLLIN, 0};
    return ::poll(&end, 1, milliseconds) == 1;
  }
  char take() const {
    char what = '\0';
    TERRACE_CHECK(::read(ends_[0], &what, 1) == 1);
    return what;
  }
  std::array<int, 2> ends_{};
};

inline std::size_t descriptors_of(pid_t pid) {
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// A line of /proc/PID/status in bytes, as "RssAnon".
inline std::uint64_t memory_of(pid_t pid, const std::string& key) {
  std::ifstream lines("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  return 0;
}

inline nlohmann::json block_tier(const e2e::Terraced& terraced) {
  const nlohmann::json status = terraced.status();
  for (const auto& tier : status["tiers"])
    if (tier["name"] == "block") return tier;
  return {};
}

inline std::uint64_t count_of(const nlohmann::json& tier, const char* name) { return tier[name].get<std::uint64_t>(); }

// Whether the block tier is written as if nothing had been, with all of its capacity, in the end.
inline bool is_whole_again(const e2e::Terraced& terraced) {
  return e2e::eventually([&] {
    const nlohmann::json tier = block_tier(terraced);
    return tier["write_failure"] == "" && count_of(tier, "retired_bytes") == 0;
  });
}

// Bytes in extents of all tiers.
inline std::uint64_t used_bytes(const nlohmann::json& status) {
  std::uint64_t used = 0;
  for (const auto& tier : status["tiers"]) used += tier["used_bytes"].get<std::uint64_t>();
  return used;
}

}  // namespace terrace::faults
